// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include <tutti/core/dtype.hpp>

namespace tutti {

// SGD: the update of a run of master weights, in one pass. With G = factor * (gradient_scale * g + L2 * w): a =
// momentum * a + G;  w -= lr * (nesterov ? G + momentum * a : a). One slot: a. (The form of PyTorch and TensorFlow: the
// rate is outside the accumulator.)
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

// Defines UpdateCall::factor of a tensor for LARS and LARC: eta * |w| / |G| if neither norm is zero, else 1. With
// `clip`, this ratio is divided by the rate and limited to 1.
struct TrustRatio {
  double eta = 0;
  bool clip = false;
};

struct SquaredNorms {  // Squared norms of a tensor's gradient and weights.
  double weights = 0;
  double gradients = 0;  // of gradient_scale * g + weight_decay * w
};

}  // namespace tutti
