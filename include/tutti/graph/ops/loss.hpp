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
struct SoftmaxCrossEntropy {
  static constexpr OpInfo info{.name = "softmax_cross_entropy"};
  float label_smoothing = 0;
  int top_k = 5;
  bool backward = false;

  [[nodiscard]] OpOutputs outputs(const OpInputs& in) const {
    (void)in.activation(0, 2);
    if (!(label_smoothing >= 0 && label_smoothing < 1))
      fail<UsageError>(in.layer(), "label smoothing in [0, 1)", label_smoothing);
    return {{"metrics", Shape{4}, false, Precision::metric}};
  }
  // The forward op itself computes the gradient of the logits, while its inputs are in the cache.
  template <class G>
  void gradient(G& g) const {
    if (!g.wanted(0)) return;
    const ValueId d = g.make(0);
    g.extend(SoftmaxCrossEntropy{label_smoothing, top_k, true}, d);
    g.pass(0, d);
  }
};

}  // namespace tutti::op
