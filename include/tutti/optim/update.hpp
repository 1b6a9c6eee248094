// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include <tutti/core/dtype.hpp>

namespace tutti {

// What an optimizer does to a run of master weights, in one pass. With G = factor * (gradient_scale * g + L2 * w):
// a = momentum * a + G;  w -= lr * (nesterov ? G + momentum * a : a). One slot: a. (PyTorch's and TensorFlow's form:
// the rate is outside the accumulator.)
struct SgdUpdate {
  double momentum = 0.9;
  bool nesterov = false;
};

// Loshchilov and Hutter 2019: the weight decay is not part of G. Two slots: m, v.
struct AdamwUpdate {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};

using UpdateOp = std::variant<SgdUpdate, AdamwUpdate>;

// One run of elements of the arenas and the numbers of this step.
struct UpdateCall {
  DType dtype = DType::f32;
  void* weights = nullptr;
  const void* gradients = nullptr;
  std::array<void*, 2> slots{};
  std::size_t count = 0;
  double lr = 0;
  double weight_decay = 0;
  double gradient_scale = 1;  // 1 / loss scale, times the clipping factor
  double factor = 1;          // LARS and LARC trust ratio
  std::int64_t step = 1;      // from 1
};

// What UpdateCall::factor of a tensor is with LARS and LARC: eta * |w| / |G| where both norms are not zero, else 1;
// with clip that divided by the rate, and 1 at most.
struct TrustRatio {
  double eta = 0;
  bool clip = false;
};

struct SquaredNorms {  // of a tensor's gradient and weights
  double weights = 0;
  double gradients = 0;  // of gradient_scale * g + weight_decay * w
};

}  // namespace tutti
