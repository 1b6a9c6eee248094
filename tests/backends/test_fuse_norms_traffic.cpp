// SPDX-License-Identifier: MIT
// Tests what the fusions of the CUDA backend save: the bytes of activations that the ops of a step of ResNet-50 move,
// and the batch norms that an L2 cache holds. bench/scaling/gpu_step.py reads the printed numbers.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/backends/cuda/ops/fuse_norms.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>

#include "backends/activation_traffic.hpp"
#include "backends/cudnn_shapes.hpp"
#include "backends/fused_nets.hpp"

using namespace tutti;
using testing::resnet50;

TEST_CASE("the memory traffic of ResNet-50's activations is the number in bench/RESULTS.md") {
  const Graph before = differentiate(fuse(resnet50(224)));
  const auto mb = [](const Graph& g) {
    auto sum = testing::activation_traffic(g, 2);
    for (const auto& [op, bytes] : sum) MESSAGE((op.empty() ? "all" : op) << ": " << static_cast<double>(bytes) / 1e6);
    return static_cast<double>(sum[""]) / 1e6;
  };
  std::vector<double> all{mb(before)};
  for (const cuda::NormFusions& o :
       {cuda::NormFusions{false, false, false, true}, cuda::NormFusions{false, false, false, true, true},
        cuda::NormFusions{false, false, false, true, true, true}, cuda::NormFusions{true, false, false, true, true},
        cuda::NormFusions{true, true, false, true, true}, cuda::NormFusions{true, true, true, true, true}}) {
    Graph g = before;
    cuda::fuse_norms(g, o);
    all.push_back(mb(g));
  }
  const std::vector<double> documented{370.2, 357.0, 347.4, 335.3, 325.1, 312.0, 305.4};
  REQUIRE(all.size() == documented.size());
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == doctest::Approx(documented[i]).epsilon(2e-4));
}

TEST_CASE("the share of batch norms that an L2 cache holds is counted") {
  Graph g = differentiate(fuse(resnet50(224)));
  cuda::fuse_norms(g, {false, false, false, true, true, true});
  for (const std::int64_t mib : {40, 48, 50}) {
    const testing::NormCache c = testing::norm_cache(g, 256, mib << 20);
    MESSAGE("cache: " << mib << " forward: " << c.forward << " backward: " << c.backward
                      << " once: " << c.forward_once + c.backward_once << " norms: " << c.norms);
    CHECK(c.norms == 106);
  }
  // An H100 holds x and y of 14x14x256 and of 7x7x512, and backward x, dy and dx of 7x7x512.
  const testing::NormCache h100 = testing::norm_cache(g, 256, std::int64_t{50} << 20);
  CHECK(h100.forward_once == 16);
  CHECK(h100.backward_once == 5);
  // A cache that holds everything: the second passes read nothing from memory.
  const testing::NormCache all = testing::norm_cache(g, 1, std::int64_t{1} << 30);
  CHECK(all.forward_once + all.backward_once == all.norms);
}

TEST_CASE("the work of a step of --recipe fast is counted: bytes, convolutions, ops") {
  Graph g = differentiate(fuse(testing::cifar_fast_graph()));
  cuda::fuse_norms(g, {false, false, false, true, true, true});
  std::map<std::string, int> ops;
  for (const Node& n : g.nodes) ++ops[std::string(name_of(n.op))];
  for (const auto& [op, bytes] : testing::activation_traffic(g, 2))
    if (!op.empty()) MESSAGE("op: " << op << " times: " << ops[op] << " bytes: " << bytes);
  int convolutions = 0;
  for (const Node& n : g.nodes) {
    const auto write = [&](const std::string& pass, const cuda::ConvProblem& p) {
      MESSAGE("convolution: " << pass << " channels: " << p.in_channels << " " << p.out_channels
                              << " kernel: " << p.kernel_h << " sizes: " << p.in_height << " " << p.out_height);
      ++convolutions;
    };
    const auto in = [&](std::size_t i) { return g[n.inputs[i]].shape; };
    const auto out = [&](std::size_t i) { return g[n.outputs[i]].shape; };
    if (const auto* c = std::get_if<op::Conv2d>(&n.op))
      write("forward", testing::problem_of(*c, in(0), in(1)[0], 1, DType::bf16));
    if (const auto* w = std::get_if<op::Conv2dBackwardWeights>(&n.op))
      write("weights", testing::problem_of(*w, in(0), out(0)[0], 1, DType::bf16));
    if (const auto* d = std::get_if<op::Conv2dBackwardData>(&n.op))
      write("data", testing::problem_of(*d, out(0), in(1)[0], 1, DType::bf16));
  }
  CHECK(convolutions == 7 + 6 + 6);  // the first layer is not learned
  std::int64_t parameters = 0;
  for (const Value& v : g.values)
    if (v.storage == Storage::parameter) parameters += v.shape.numel();
  MESSAGE("parameters: " << parameters);
  CHECK(parameters > 1'900'000);
  const auto evaluated = testing::activation_traffic(fuse(testing::cifar_fast_graph()), 2);
  MESSAGE("forward bytes: " << evaluated.at(""));
  for (const std::int64_t mib : {40, 50}) {
    const testing::NormCache c = testing::norm_cache(g, 1000, mib << 20);
    MESSAGE("cache: " << mib << " forward: " << c.forward << " backward: " << c.backward
                      << " once: " << c.forward_once + c.backward_once << " norms: " << c.norms);
    CHECK(c.norms == 12);
  }
}
