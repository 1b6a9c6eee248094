// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/graph/custom.hpp>
#include <tutti/graph/ops/op.hpp>

namespace tutti::op {

// The gradient of a user-defined op.
struct CustomBackward {
  static constexpr OpInfo info{.name = "custom_backward", .gradient = true};
  const CustomOp* def = nullptr;
};
struct Custom {  // A user-defined op, see CustomOp.
  static constexpr OpInfo info{.name = "custom"};
  const CustomOp* def = nullptr;

  [[nodiscard]] OpOutputs outputs(const OpInputs& in) const;

  template <class G>
  void gradient(G& g) const {
    std::vector<ValueId> from;
    for (std::size_t k = 0; k < g.outputs().size(); ++k) {
      const auto list = g.incoming(k, 1);
      if (list.empty()) {
        if (from.empty() && g.outputs().size() == 1) return;
        fail<UsageError>("differentiate", {"a loss that depends on every output of '", def->name, "'"},
                         "a loss that ignores an output");
      }
      from.push_back(list[0]);
    }
    if (def->backward.empty())
      fail<UsageError>("differentiate", {"a gradient for the custom op '", def->name, "'"}, "no gradient",
                       "fill CustomOp::backward");
    from.insert(from.end(), g.inputs().begin(), g.inputs().end());
    from.insert(from.end(), g.outputs().begin(), g.outputs().end());
    std::vector<ValueId> to;
    for (std::size_t k = 0; k < g.inputs().size(); ++k) {
      to.push_back(g.is_parameter(k) ? g.make_or_scratch(k) : g.make(k));
      if (g.wanted(k) && !g.is_parameter(k)) g.pass(k, to.back());
    }
    g.add_lists(CustomBackward{def}, std::move(from), std::move(to));
  }
};

inline OpOutputs Custom::outputs(const OpInputs& in) const {
  CustomOp::Shapes shapes;
  for (std::size_t k = 0; k < in.size(); ++k) shapes.push_back(in.shape(k));
  OpOutputs out;
  for (const Shape& s : def->shape(shapes)) out.push_back({in.layer(), s});
  if (out.empty()) fail<ShapeError>(in.layer(), "an op with one output or more", "no output");
  for (const OpOutput& o : out)
    if (o.shape.rank() < 1 || o.shape[0] != 1)
      fail<ShapeError>(in.layer(), "outputs of one row, [1, ...]", to_string(o.shape));
  return out;
}

}  // namespace tutti::op
