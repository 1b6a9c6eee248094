// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <type_traits>

#include <tutti/engine/kernel.hpp>
#include <tutti/graph/ops.hpp>

namespace tutti {

// A backend's table: a row for each op that it has a kernel for, the kernel's class K. K::For is the op, which
// outlives the kernel.
template <class... Ks>
struct KernelTable {
  template <class O>
  static constexpr bool has = (std::is_same_v<O, typename Ks::For> || ...);

  // The kernel, made of the op and of `with`; null where the table has none.
  template <class... A>
  [[nodiscard]] static std::unique_ptr<Kernel> make(const Op& op, A&... with) {
    Kernel* made = nullptr;  // less for a compiler than a make_unique of each
    (void)(... || (op_cast<typename Ks::For>(op) != nullptr && (made = new Ks(op, with...)) != nullptr));
    return std::unique_ptr<Kernel>(made);
  }
};

}  // namespace tutti
