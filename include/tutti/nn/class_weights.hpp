// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/mixed_label.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/tensor/view.hpp>

// Weights of classes in the loss, for sets in which some classes have more images than others.
namespace tutti {

namespace detail {

// logits, labels -> logits. Multiplies the gradient of each row by the weight of its class.
[[nodiscard]] inline std::shared_ptr<const CustomOp> weighted_rows(std::vector<float> weights) {
  auto op = std::make_shared<CustomOp>();
  op->name = "class weights";
  op->shape = [](const CustomOp::Shapes& in) { return CustomOp::Shapes{in.at(0)}; };
  op->forward["host"] = [](std::span<const TensorRef> in, std::span<const TensorRef> out) {
    with_float_type(in[0].dtype, [&](auto zero) {
      const auto from = in[0].view<decltype(zero)>();
      std::copy(from.begin(), from.end(), out[0].as<decltype(zero)>());
    });
  };
  // dy, logits, labels, y -> dlogits, one that is not written
  op->backward["host"] = [w = std::move(weights)](std::span<const TensorRef> in, std::span<const TensorRef> out) {
    const auto weight_of = [&](std::int32_t label) {
      return label >= 0 && static_cast<std::size_t>(label) < w.size() ? w[static_cast<std::size_t>(label)] : 0.F;
    };
    const auto rows = static_cast<std::size_t>(in[0].shape[0]);
    const bool mixed = in[2].shape.rank() == 2;
    with_float_type(in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const auto dy = in[0].view<T>();
      T* const dx = out[0].as<T>();
      const std::size_t classes = dy.size() / std::max<std::size_t>(rows, 1);
      for (std::size_t row = 0; row < rows; ++row) {
        float weight = 0;
        if (mixed) {
          const MixedLabel& l = static_cast<const MixedLabel*>(in[2].data)[row];
          weight = l.share * weight_of(l.first) + (1 - l.share) * weight_of(l.second);
        } else {
          weight = weight_of(static_cast<const std::int32_t*>(in[2].data)[row]);
        }
        for (std::size_t k = row * classes; k < (row + 1) * classes; ++k)
          dx[k] = static_cast<T>(static_cast<float>(dy[k]) * weight);
      }
    });
  };
  return op;
}

}  // namespace detail

// Changes a recorded model: in training the loss of an image counts with the weight of its class, as in PyTorch's
// CrossEntropyLoss(weight) but divided by the number of images. Of a mixed image the whole loss counts with the mean of
// the two weights by their shares, and smoothing does not change the weight. The loss in metrics and reports stays
// without weights.
// weights: one for each class, from 0. For backends on the host. Throws UsageError.
inline void weigh_classes(Graph& g, std::vector<float> weights) {
  if (g.metrics == no_value || g.nodes.empty() || g.nodes.back().outputs.front() != g.metrics)
    fail<UsageError>("class weights", "a model that ends in a loss", "a model without it");
  const ValueId logits = g.logits;
  if (static_cast<std::int64_t>(weights.size()) != g[logits].shape[1])
    fail<UsageError>("class weights", {"a weight for each of ", g[logits].shape[1], " classes"}, weights.size());
  for (const float w : weights)
    if (!(w >= 0 && w <= 1e6F)) fail<UsageError>("class weights", "weights from 0 to 1e6", w);
  const std::shared_ptr<const CustomOp> with = detail::weighted_rows(std::move(weights));
  Node loss = std::move(g.nodes.back());
  g.nodes.pop_back();
  Value same = g[logits];
  same.name = "class weights";
  const ValueId out = g.add_value(std::move(same));
  Node node{Op(std::in_place_type<op::Custom>, op::Custom{with.get()}), {logits, g.labels}, {out}, "class weights"};
  node.owned = with;
  g.add_node(std::move(node));
  std::replace(loss.inputs.begin(), loss.inputs.end(), logits, out);
  g.add_node(std::move(loss));
  g.logits = out;
}

}  // namespace tutti
