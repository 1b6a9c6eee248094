// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/engine/backend.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// Adds up the gradients of the micro-batches of one step in separate memory, while the next micro-batch fills the
// arena.
class GradientSum {
 public:
  explicit GradientSum(Backend& backend) : b_(backend) {}

  // Allocates the memory before a phase that must not allocate.
  void reserve(const ArenaLayout& p) {
    if (sum_.bytes() == 0) sum_ = Buffer(b_.memory(), p.bytes());
  }
  // Adds the gradients of a micro-batch. After the last one the arena holds the sum.
  void add(const ArenaLayout& p, void* gradients, bool first, bool last) {
    reserve(p);
    if (first)
      b_.memory().copy(sum_.data(), gradients, p.bytes());
    else
      b_.accumulate(p.dtype, sum_.data(), gradients, p.count);
    if (last) b_.memory().copy(gradients, sum_.data(), p.bytes());
  }

 private:
  Backend& b_;
  Buffer sum_;
};

}  // namespace tutti
