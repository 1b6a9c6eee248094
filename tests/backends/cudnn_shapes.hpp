// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <variant>

#include <tutti/backends/cuda/cudnn/conv_problem.hpp>
#include <tutti/backends/cuda/cudnn/norm_fusion.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>

// The convolutions and batch norms that our nets have.
namespace tutti::testing {

struct Shapes {
  std::set<cuda::ConvProblem> convolutions;
  std::set<std::pair<std::int64_t, std::int64_t>> norms;  // channels, height (the images are square)
};

inline void add_shapes(Shapes& s, const Graph& g, std::int64_t rows, DType type) {
  for (const Node& n : g.nodes) {
    const auto shape = [&](std::size_t i) { return g[n.inputs[i]].shape; };
    if (const auto* c = std::get_if<op::Conv2d>(&n.op)) {
      const Shape x = shape(0), w = shape(1);
      // What the backend pads: cuDNN's tensor-core kernels want whole vectors.
      const std::int64_t in = x[1] == 3 ? 4 : x[1];
      s.convolutions.insert({rows, in, x[2], x[3], w[0], c->out_h(x[2]), c->out_w(x[3]), c->kernel_h, c->kernel_w,
                             c->stride, c->stride, c->padding, c->padding, c->padding, c->padding, type});
    }
    if (std::holds_alternative<op::BatchNorm>(n.op)) s.norms.insert({shape(0)[1], shape(0)[2]});
  }
}

inline Shapes resnet50_shapes(std::int64_t rows, DType type) {
  Builder b(3, 224, 224);
  models::resnet(b, b.normalize({120, 124, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}), {.depth = 50, .classes = 1000});
  Shapes s;
  add_shapes(s, b.graph(), rows, type);
  return s;
}
inline Shapes cifar_shapes(int depth, std::int64_t rows, DType type) {
  Builder b(3, 32, 32);
  models::resnet_cifar(b, b.normalize({120, 124, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}), {.depth = depth});
  Shapes s;
  add_shapes(s, b.graph(), rows, type);
  return s;
}

}  // namespace tutti::testing
