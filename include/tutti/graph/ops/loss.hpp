// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/ignored_label.hpp>
#include <tutti/graph/ops/op.hpp>

namespace tutti::op {

// logits [N,K], labels i32 [N] -> metrics f64 [4] (sum of losses, top-1 hits, top-k hits, rows) [, dlogits]
// dlogits = loss_scale * (softmax - target) / global batch, with the target smoothed by label_smoothing / K. The loss
// in the metrics is the cross entropy against the smoothed target. A row with the label ignored_label has no loss, hits
// or gradient but counts as a row: to get means over the other rows, subtract the ignored rows. Any other label outside
// 0..K-1 causes a DataError.
//
// Labels may be mixed, [N, 3] (core/mixed_label.hpp): the target is then `share` for the first class and 1 - share for
// the second, before smoothing. Hits are those of the first class.
//
// binary: each class is decided for itself. The loss of a row is the mean over its classes (or the sum, if sum_classes)
// of the binary cross entropy between sigmoid(logit) and the target, which is smoothed as above. With a threshold of 0
// or more, a target above the threshold counts as 1 and any other as 0, so that both classes of a mixed label can count
// as 1. As timm's BinaryCrossEntropy; Wightman et al. 2021, ResNet strikes back.
struct SoftmaxCrossEntropy {
  static constexpr OpInfo info{.name = "softmax_cross_entropy"};
  float label_smoothing = 0;
  int top_k = 5;
  bool backward = false;
  bool binary = false;
  float threshold = -1;  // of binary; negative: the smoothed target as it is
  bool sum_classes = false;

  [[nodiscard]] OpOutputs outputs(const OpInputs& in) const {
    (void)in.activation(0, 2);
    if (!(label_smoothing >= 0 && label_smoothing < 1))
      fail<UsageError>(in.layer(), "label smoothing in [0, 1)", label_smoothing);
    if (!(threshold < 1)) fail<UsageError>(in.layer(), "a threshold under 1", threshold);
    return {{"metrics", Shape{4}, false, Precision::metric}};
  }
  // The forward op itself computes the gradient of the logits, while its inputs are in the cache.
  template <class G>
  void gradient(G& g) const {
    if (!g.wanted(0)) return;
    const ValueId d = g.make(0);
    SoftmaxCrossEntropy both = *this;
    both.backward = true;
    g.extend(both, d);
    g.pass(0, d);
  }
};

}  // namespace tutti::op
