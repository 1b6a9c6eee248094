// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <tutti/engine/call.hpp>
#include <tutti/engine/plan/plan.hpp>

namespace tutti {

// Runs one node of a plan. Backend::kernel() makes it when the plan is made. It then reports how it is divided and what
// it packs, is prepared once, and runs in every step.
class Kernel {
 public:
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  virtual ~Kernel() = default;

  // Returns how the work is divided.
  [[nodiscard]] virtual Partition cut() { return {}; }
  // Returns the bytes of the form in which it reads its weights, the second input; 0: it reads the master weights.
  [[nodiscard]] virtual std::size_t packed_bytes() { return 0; }
  // Writes that form of the master weights. Called after prepare(); does not allocate memory.
  virtual void pack(const TensorRef& /*weights*/, void* /*to*/) {}
  // Prepares what the runs need, for each number of rows that they have.
  virtual void prepare(const PrepareInfo& /*info*/) {}
  virtual void run(Call& c) = 0;
  // Returns whether it is the reference loop, as a whole on one thread, because the backend has no kernel of its own.
  [[nodiscard]] virtual bool is_fallback() const { return false; }
};

}  // namespace tutti
