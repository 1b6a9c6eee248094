// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/graph/builder.hpp>

// Losses besides the builder's softmax cross entropy.
namespace tutti::nn {

struct BinaryCrossEntropyOptions {  // Options of binary_cross_entropy().
  float label_smoothing = 0;
  float threshold = -1;      // 0 or more: a smoothed target above it counts as 1, another one as 0
  bool sum_classes = false;  // the loss of a row is the sum over its classes, not their mean
  int top_k = 5;
};

// Ends the model with a loss that decides each class for itself. logits: [N, classes].
inline void binary_cross_entropy(Builder& b, ValueId logits, const BinaryCrossEntropyOptions& o = {}) {
  b.end(logits, {o.label_smoothing, o.top_k, false, true, o.threshold, o.sum_classes});
}

}  // namespace tutti::nn
