// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <tutti/engine/call.hpp>
#include <tutti/engine/plan.hpp>

namespace tutti {

// How one node of a plan runs: made by Backend::kernel() when the plan is made, asked how it is cut and what it packs,
// prepared once, then run in every step.
class Kernel {
 public:
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  virtual ~Kernel() = default;

  // How the work is divided.
  [[nodiscard]] virtual Partition cut() { return {}; }
  // Bytes of the form in which it reads its weights, the second input; 0: it reads the master weights.
  [[nodiscard]] virtual std::size_t packed_bytes() { return 0; }
  // Writes that form of the master weights. After prepare(); allocates nothing.
  virtual void pack(const TensorRef& /*weights*/, void* /*to*/) {}
  // Makes ready what the runs need, for each number of rows that they come with.
  virtual void prepare(const PrepareInfo& /*info*/) {}
  virtual void run(Call& c) = 0;
  // Whether it is the reference loop, whole and on one thread, because the backend has nothing of its own.
  [[nodiscard]] virtual bool is_fallback() const { return false; }
};

}  // namespace tutti
