// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/graph/ops/op.hpp>

namespace tutti::op {

struct ConcatBackward {  // dy -> dx, dy's channels from `first` on
  static constexpr OpInfo info{.name = "concat_backward", .gradient = true};
  std::int64_t first = 0;
};
struct Concat {  // 1 to 16 inputs [N,C,H,W] with the same H and W -> their channels one after the other
  static constexpr OpInfo info{.name = "concat"};

  [[nodiscard]] static OpOutputs outputs(const OpInputs& in);

  template <class G>
  void gradient(G& g) const {
    const ValueId dy = g.incoming();
    if (dy == no_value) return;
    std::int64_t first = 0;
    for (std::size_t k = 0; k < g.inputs().size(); ++k) {
      if (g.wanted(k)) {
        const ValueId dx = g.make(k);
        g.add(ConcatBackward{first}, {dy}, {dx});
        g.pass(k, dx);
      }
      first += g.channels(k);
    }
  }
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION OpOutputs Concat::outputs(const OpInputs& in) {
  if (in.size() < 1 || in.size() > 16) fail<ShapeError>(in.layer(), "1 to 16 inputs", in.size());
  Shape y = in.activation(0, 4);
  for (std::size_t k = 1; k < in.size(); ++k) {
    const Shape& x = in.activation(k, 4);
    if (x[2] != y[2] || x[3] != y[3])
      fail<ShapeError>(in.layer(), {"inputs of ", y[2], "x", y[3], " pixels"}, to_string(in[k]));
    y = Shape{1, y[1] + x[1], y[2], y[3]};
  }
  return one_output(in, y);
}
#endif

}  // namespace tutti::op
