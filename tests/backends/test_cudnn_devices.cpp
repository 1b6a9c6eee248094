// SPDX-License-Identifier: MIT
// takes long
// Tests that cuDNN has a plan for every convolution that tutti's nets and the tests on GPUs request, on GPUs of which
// only a description exists: H100, L4 and RTX 4090. test_cudnn_plans tests the other descriptions. A fusion may be
// refused: then its steps run one by one (test_cuda_fusion).
#include <tutti/backends/cuda/cudnn/convolution.hpp>
#include <tutti/backends/cuda/cudnn/norm_fusion.hpp>
#include <tutti/backends/cuda/ops/conv_op.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>

#include "backends/cudnn_shapes.hpp"
#include "backends/described_gpus.hpp"
#include "engine/op_cases.hpp"

using namespace tutti;
using namespace tutti::cuda;
using cudnn::OpGraph;
using testing::no_stand_in;

namespace {

constexpr std::array passes{ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights};
constexpr std::array<const char*, 3> gpus{"h100", "l4", "rtx4090"};

// Returns the convolutions that the tests on a GPU request (test_cuda.cpp).
std::set<ConvProblem> problems_of_tests(DType type) {
  std::set<ConvProblem> all;
  for (const auto& cases : {testing::resnet_conv_cases(), testing::odd_conv_cases()})
    for (const testing::ConvCase& c : cases) {
      if (c.groups > 1) continue;  // tutti's own kernels
      const Shape x{c.rows, c.channels, c.height, c.width}, w{c.out, c.channels, c.window.kernel_h, c.window.kernel_w},
          y{c.rows, c.out, c.window.out_h(c.height), c.window.out_w(c.width)};
      all.insert(PreparedConv(ConvPass::forward, c.window, type, x, w, y).problem);
    }
  return all;
}
std::set<ConvProblem> problems_of_nets(DType type) {
  std::set<ConvProblem> all;
  for (const auto& [net, rows] : testing::planned_nets()) all.merge(testing::shapes_of(net, rows, type).convolutions);
  return all;
}

void check_plans(const std::string& gpu, const std::set<ConvProblem>& problems, DType type, bool exact,
                 bool deterministic) {
  int count = 0;
  for (const ConvProblem& p : problems)
    for (const ConvPass pass : passes) {
      OpGraph graph = cudnn::convolution_graph(pass, p, type);
      cudnn::Refusal refusal;
      const auto plans = testing::plans_for(gpu, graph, refusal, false, {deterministic, exact});
      INFO(gpu, ", ", graph.name(), ": ", refusal.why);
      CHECK(plans.size() == 1);
      ++count;
    }
  std::printf("%s %s: %d convolutions\n", gpu.c_str(), std::string(name_of(type)).c_str(), count);
}

template <class MakeGraph>
void count_fusions(const std::string& gpu, DType type, FusedPass pass, const MakeGraph& make) {
  int planned = 0, all = 0;
  for (const ConvProblem& p : testing::resnet50_shapes(256, type).convolutions) {
    if (p.in_channels % 8 != 0) continue;
    OpGraph graph = make(p);
    cudnn::Refusal refusal;
    const auto plans = testing::plans_for(gpu, graph, refusal, true);
    INFO(gpu, ", ", graph.name());
    CHECK((!plans.empty() || !refusal.why.empty()));
    planned += static_cast<int>(plans.size());
    ++all;
  }
  std::printf("%s %s, %s: %d of %d in one kernel\n", gpu.c_str(), std::string(name_of(type)).c_str(),
              to_string(pass).c_str(), planned, all);
}

}  // namespace

TEST_CASE("cuDNN plans the bf16 convolutions of ResNet-50 for an H100") {
  if (!no_stand_in())
    check_plans("h100", testing::resnet50_shapes(256, DType::bf16).convolutions, DType::bf16, false, false);
}
TEST_CASE("cuDNN plans the f16 convolutions of ResNet-50 for an L4" * doctest::test_suite("nightly")) {
  if (!no_stand_in())
    check_plans("l4", testing::resnet50_shapes(256, DType::f16).convolutions, DType::f16, false, false);
}
TEST_CASE("cuDNN plans the exact f32 convolutions of ResNet-50 for an RTX 4090" * doctest::test_suite("nightly")) {
  if (!no_stand_in())
    check_plans("rtx4090", testing::resnet50_shapes(256, DType::f32).convolutions, DType::f32, true, false);
}
TEST_CASE("cuDNN plans every convolution of tutti's nets and of the tests on GPUs for every GPU" *
          doctest::test_suite("nightly")) {
  if (no_stand_in()) return;
  for (const char* const gpu : gpus)
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
      for (const bool exact : {false, true})
        for (const bool deterministic : {false, true}) {
          if (exact && type != DType::f32) continue;
          check_plans(gpu, problems_of_nets(type), type, exact, deterministic);
          check_plans(gpu, problems_of_tests(type), type, exact, deterministic);
        }
}
TEST_CASE("cuDNN plans each fusion of ResNet-50 or gives a reason, for every GPU" * doctest::test_suite("nightly")) {
  if (no_stand_in()) return;
  for (const char* const gpu : gpus)
    for (const DType type : {DType::bf16, DType::f16}) {
      count_fusions(gpu, type, FusedPass::activated_statistics,
                    [](const ConvProblem& p) { return ScaleBiasReluConvStatistics{p}.graph(); });
      count_fusions(gpu, type, FusedPass::activated_backward_weights, [](const ConvProblem& p) {
        return ScaleBiasReluConvBackwardWeights{p, p.type}.graph();
      });
      count_fusions(gpu, type, FusedPass::backward_data_norm,
                    [](const ConvProblem& p) { return ConvBackwardDataReluBatchNorm{p}.graph(); });
    }
}
