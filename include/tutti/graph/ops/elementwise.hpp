// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/graph/ops/op.hpp>

namespace tutti::op {

// image u8 [N,C,H,W] -> x: (image - mean[c]) * inv_std[c]
struct Normalize {
  static constexpr OpInfo info{.name = "normalize"};
  std::span<const float> mean, inv_std;

  [[nodiscard]] OpOutputs outputs(const OpInputs& in) const {
    const Shape& x = in.shape(0);
    if (static_cast<std::int64_t>(mean.size()) != x[1] || mean.size() != inv_std.size())
      fail<ShapeError>(in.layer(), {x[1], " means and deviations"}, mean.size());
    return one_output(in, x);
  }
  template <class G>
  void gradient(G&) const {}  // images need no gradient
};

struct Add {  // a, b -> a + b
  static constexpr OpInfo info{.name = "add"};

  [[nodiscard]] static OpOutputs outputs(const OpInputs& in) {
    in.need_same(0, 1);
    return one_output(in, in.shape(0));
  }
  template <class G>
  void gradient(G& g) const {
    const ValueId dy = g.incoming();
    if (dy == no_value) return;
    for (const std::size_t k : {0U, 1U})
      if (g.wanted(k)) g.pass(k, dy);
  }
};

struct BiasBackward {  // dy -> db
  static constexpr OpInfo info{.name = "bias_backward", .gradient = true};
};
struct Bias {  // x, b [C] -> y
  static constexpr OpInfo info{.name = "bias"};

  [[nodiscard]] static OpOutputs outputs(const OpInputs& in) {
    const Shape& x = in.activation(0);
    if (x.rank() < 2 || in.parameter(1) != Shape{x[1]})
      fail<ShapeError>(in.layer(), "a bias with one value per channel",
                       {to_string(in.shape(1)), " for ", to_string(in[0])});
    return one_output(in, x);
  }
  template <class G>
  void gradient(G& g) const {
    const ValueId dy = g.incoming();
    if (dy == no_value) return;
    if (g.wanted(1)) g.add(BiasBackward{}, {dy}, {g.make(1)});
    if (g.wanted(0)) g.pass(0, dy);
  }
};

}  // namespace tutti::op
