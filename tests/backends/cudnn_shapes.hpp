// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/backends/cuda/cudnn/conv_problem.hpp>
#include <tutti/backends/cuda/cudnn/norm_fusion.hpp>
#include <tutti/backends/cuda/ops/conv_op.hpp>
#include <tutti/backends/cuda/ops/fuse_norms.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/models/cifar_fast.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>

// The convolutions and batch norms of tutti's nets.
namespace tutti::testing {

struct Shapes {
  std::set<cuda::ConvProblem> convolutions;
  std::set<std::pair<std::int64_t, std::int64_t>> norms;  // channels, height (the images are square)
};

// Returns a convolution as the backend requests it. It pads channels, because cuDNN's kernels for tensor cores need
// whole vectors.
inline cuda::ConvProblem problem_of(const op::Window& c, const Shape& x, std::int64_t out, std::int64_t rows,
                                    DType type) {
  const std::int64_t in = cuda::padded_in_channels(type, x[1]);
  return {rows,       in,       x[2],     x[3],      out,       c.out_h(x[2]), c.out_w(x[3]), c.kernel_h,
          c.kernel_w, c.stride, c.stride, c.padding, c.padding, c.padding,     c.padding,     type};
}

inline void add_shapes(Shapes& s, const Graph& g, std::int64_t rows, DType type) {
  for (const Node& n : g.nodes) {
    const auto shape = [&](std::size_t i) { return g[n.inputs[i]].shape; };
    if (const auto* c = std::get_if<op::Conv2d>(&n.op))
      s.convolutions.insert(problem_of(*c, shape(0), shape(1)[0], rows, type));
    if (std::holds_alternative<op::BatchNorm>(n.op)) s.norms.insert({shape(0)[1], shape(0)[2]});
  }
}

// Returns the names of the graphs that the backend requests from cuDNN when it runs a fused graph.
inline std::set<std::string> fused_graphs(Graph g, std::int64_t rows, DType type) {
  using cuda::ConvPass;
  g = differentiate(fuse(std::move(g)));
  cuda::fuse_norms(g, {});
  std::set<std::string> names;
  for (const Node& n : g.nodes) {
    const auto in = [&](std::size_t i) { return g[n.inputs[i]].shape; };
    const auto out = [&](std::size_t i) { return g[n.outputs[i]].shape; };
    if (const auto* c = op_cast<cuda::Conv2dStatistics>(n.op))
      names.insert(
          cuda::ScaleBiasReluConvStatistics{problem_of(*c, in(0), in(1)[0], rows, type), c->activate}.graph().name());
    if (const auto* w = op_cast<cuda::Conv2dBackwardWeightsActivated>(n.op))
      names.insert(
          cuda::ScaleBiasReluConvBackwardWeights{problem_of(*w, in(0), out(0)[0], rows, type), type}.graph().name());
    if (const auto* d = op_cast<cuda::Conv2dBackwardDataNorm>(n.op))
      names.insert(cuda::ConvBackwardDataReluBatchNorm{problem_of(*d, out(0), in(1)[0], rows, type)}.graph().name());
    if (const auto* c = std::get_if<op::Conv2d>(&n.op))
      names.insert(
          cuda::cudnn::convolution_graph(ConvPass::forward, problem_of(*c, in(0), in(1)[0], rows, type), type).name());
    if (const auto* w = std::get_if<op::Conv2dBackwardWeights>(&n.op))
      names.insert(
          cuda::cudnn::convolution_graph(ConvPass::backward_weights, problem_of(*w, in(0), out(0)[0], rows, type), type)
              .name());
    if (const auto* d = std::get_if<op::Conv2dBackwardData>(&n.op))
      names.insert(
          cuda::cudnn::convolution_graph(ConvPass::backward_data, problem_of(*d, out(0), in(1)[0], rows, type), type)
              .name());
  }
  return names;
}

inline Graph resnet_graph(int depth, std::int64_t size, bool cifar_stem = false) {
  Builder b(3, size, size);
  models::resnet(b, b.normalize({120, 124, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}),
                 {.depth = depth, .classes = 1000, .cifar_stem = cifar_stem});
  return std::move(b).take();
}
inline Graph cifar_graph(int depth, bool preactivation = false) {
  const std::int64_t size = preactivation ? 28 : 32;
  Builder b(3, size, size);
  models::resnet_cifar(b, b.normalize({120, 124, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}),
                       {.depth = depth, .preactivation = preactivation});
  return std::move(b).take();
}
inline Graph cifar_fast_graph() {
  Builder b(3, 32, 32);
  models::cifar_fast(b, b.normalize({120, 124, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}));
  return std::move(b).take();
}
inline Shapes shapes_of(const Graph& g, std::int64_t rows, DType type) {
  Shapes s;
  add_shapes(s, g, rows, type);
  return s;
}
inline Shapes resnet50_shapes(std::int64_t rows, DType type) { return shapes_of(resnet_graph(50, 224), rows, type); }
inline Shapes cifar_shapes(int depth, std::int64_t rows, DType type) {
  return shapes_of(cifar_graph(depth), rows, type);
}

// A net for which the tests make plans, and its batch size.
struct PlannedNet {
  Graph graph;
  std::int64_t rows;
};
inline std::vector<PlannedNet> planned_nets() {
  return {{resnet_graph(50, 224), 256},      {resnet_graph(50, 32), 128}, {resnet_graph(50, 32, true), 128},
          {resnet_graph(18, 32, true), 128}, {cifar_graph(20), 128},      {cifar_graph(50, true), 128},
          {cifar_fast_graph(), 1000}};
}

}  // namespace tutti::testing
