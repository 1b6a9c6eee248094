// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace tutti {

// Takes gradients of weights piece by piece, on the threads that compute them, while they are in a cache. Then they
// need not pass through the gradient arena.
class GradientSink {
 public:
  GradientSink() = default;
  GradientSink(const GradientSink&) = delete;
  GradientSink& operator=(const GradientSink&) = delete;
  virtual ~GradientSink() = default;

  // place: where these `count` values belong in the gradient arena, in one tensor. They are all f32. Each element of a
  // tensor is given once in a run, or none. Any number of threads may call it at the same time.
  virtual void take(const float* place, const float* values, std::size_t count) = 0;
};

}  // namespace tutti
