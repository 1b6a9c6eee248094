// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <type_traits>

#include <tutti/engine/kernel.hpp>
#include <tutti/graph/ops.hpp>

namespace tutti {

// A backend's table: one row for each op that it has a kernel for, with the kernel's class K. K::For is the op, which
// outlives the kernel.
template <class... Ks>
struct KernelTable {
  template <class O>
  static constexpr bool has = (std::is_same_v<O, typename Ks::For> || ...);

  // Returns the kernel, constructed from the op and `with`; null if the table has no kernel for it.
  template <class... A>
  [[nodiscard]] static std::unique_ptr<Kernel> make(const Op& op, A&... with) {
    Kernel* made = nullptr;  // costs a compiler less than a make_unique for each
    (void)(... || (op_cast<typename Ks::For>(op) != nullptr && (made = new Ks(op, with...)) != nullptr));
    return std::unique_ptr<Kernel>(made);
  }
};

}  // namespace tutti
