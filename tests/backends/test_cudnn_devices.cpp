// SPDX-License-Identifier: MIT
// takes long
// Tests that cuDNN has a plan for every convolution that tutti's nets and the tests on GPUs request, on all GPUs of
// tests/backends/devices, which are only described. A fusion may be refused: then its parts run as separate ops
// (test_cuda_fusion). test_cudnn_plans lists which fusions are expected, and restores plans.
#include <tutti/backends/cuda/cudnn/convolution.hpp>
#include <tutti/backends/cuda/cudnn/norm_fusion.hpp>
#include <tutti/backends/cuda/ops/conv_op.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "backends/cudnn_shapes.hpp"
#include "backends/described_gpus.hpp"
#include "backends/library_cases.hpp"
#include "engine/op_cases.hpp"

using namespace tutti;
using namespace tutti::cuda;
using cudnn::OpGraph;
using testing::no_stand_in;

namespace {

constexpr std::array passes{ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights};

struct Gpu {
  const char* name;
  bool bf16 = true;   // bf16 and TF32
  bool fuses = true;  // the tests on a GPU require the fusions in f16
};
constexpr std::array<Gpu, 9> gpus{{{"h100"},
                                   {"h200"},
                                   {"a100"},
                                   {"l4"},
                                   {"rtx4090"},
                                   {"b200", true, false},
                                   {"rtx5090", true, false},
                                   {"t4", false, false},
                                   {"v100", false, false}}};
constexpr std::array all_types{DType::f32, DType::bf16, DType::f16};

// Returns whether the installed cuDNN makes plans for the GPU. If not, prints why.
bool known(const Gpu& gpu) {
  if (std::string_view(gpu.name) != "v100" || cudnnGetVersion() < 91100) return true;
  std::printf("v100: left out, because cuDNN %s does not support compute capability 7.0\n",
              cudnn::version_text(cudnnGetVersion()).c_str());
  return false;
}

// Returns the convolutions that the tests on a GPU request (test_cuda.cpp, test_cuda_libraries.cpp).
std::set<ConvProblem> problems_of_tests(DType type) {
  std::set<ConvProblem> all;
  for (const auto& cases : {testing::resnet_conv_cases(), testing::odd_conv_cases()})
    for (const testing::ConvCase& c : cases) {
      if (c.groups > 1) continue;  // tutti's own kernels
      const Shape x{c.rows, c.channels, c.height, c.width}, w{c.out, c.channels, c.window.kernel_h, c.window.kernel_w},
          y{c.rows, c.out, c.window.out_h(c.height), c.window.out_w(c.width)};
      all.insert(PreparedConv(ConvPass::forward, c.window, type, x, w, y).problem);
    }
  for (const auto& [kernel, stride] : {std::pair{1, 1}, {1, 2}, {3, 1}, {3, 2}, {7, 2}})
    all.insert(cases::problem(type, kernel, stride));
  all.insert(cases::problem(type, 3, 1, 64, 64));
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

namespace {

// Calls f(gpu, type) for all GPUs that the installed cuDNN knows and all of their types.
template <class F>
void each_gpu(const F& f) {
  for (const Gpu& gpu : gpus)
    for (const DType type : all_types)
      if ((gpu.bf16 || type != DType::bf16) && known(gpu)) f(gpu, type);
}

}  // namespace

TEST_CASE("cuDNN plans every convolution of the tests on GPUs for every GPU" * doctest::test_suite("nightly")) {
  if (no_stand_in()) return;
  each_gpu([](const Gpu& gpu, DType type) {
    for (const bool exact : {false, true})
      for (const bool deterministic : {false, true})
        if (!exact || (type == DType::f32 && gpu.bf16))
          check_plans(gpu.name, problems_of_tests(type), type, exact, deterministic);
  });
}
TEST_CASE("cuDNN plans every convolution of tutti's nets for every GPU" * doctest::test_suite("nightly")) {
  if (no_stand_in()) return;
  each_gpu([](const Gpu& gpu, DType type) {
    for (const bool exact : {false, true})
      for (const bool deterministic : {false, true})
        if (!exact || (type == DType::f32 && gpu.bf16))
          check_plans(gpu.name, problems_of_nets(type), type, exact, deterministic);
  });
}
TEST_CASE("cuDNN plans each fusion that the tests on GPUs require, for every GPU from A100 to H200" *
          doctest::test_suite("nightly")) {
  if (no_stand_in()) return;
  int count = 0;
  const auto require = [&](const Gpu& gpu, OpGraph graph) {
    cudnn::Refusal refusal;
    const auto plans = testing::plans_for(gpu.name, graph, refusal, false);
    INFO(gpu.name, ", ", graph.name(), ": ", refusal.why);
    CHECK(plans.size() == 1);
    ++count;
  };
  for (const Gpu& gpu : gpus) {
    if (!gpu.fuses) continue;
    for (const DType type : {DType::f16, DType::bf16}) {
      const ConvProblem p = cases::problem(type, 3, 1, 64, 64);
      require(gpu, ScaleBiasReluConvStatistics{p, false}.graph());
      if (type != DType::f16) continue;
      require(gpu, ScaleBiasReluConvStatistics{p, true}.graph());
      require(gpu, ScaleBiasReluConvBackwardWeights{p, type}.graph());
      require(gpu, ConvBackwardDataReluBatchNorm{p}.graph());
    }
    for (const DType type : all_types) {
      const NormProblem n{4, 64, 8, 8, type};
      for (const bool residual : {false, true}) require(gpu, BatchNormAddRelu{n, residual, true}.graph());
      require(gpu, BatchNormAddReluBackward{n, true}.graph());
    }
  }
  std::printf("%d fusions\n", count);
}
TEST_CASE("cuDNN plans each fusion of ResNet-50 or gives a reason, for every GPU" * doctest::test_suite("nightly")) {
  if (no_stand_in()) return;
  each_gpu([](const Gpu& gpu, DType type) {
    if (type == DType::f32) return;
    count_fusions(gpu.name, type, FusedPass::activated_statistics,
                  [](const ConvProblem& p) { return ScaleBiasReluConvStatistics{p}.graph(); });
    count_fusions(gpu.name, type, FusedPass::activated_backward_weights, [](const ConvProblem& p) {
      return ScaleBiasReluConvBackwardWeights{p, p.type}.graph();
    });
    count_fusions(gpu.name, type, FusedPass::backward_data_norm,
                  [](const ConvProblem& p) { return ConvBackwardDataReluBatchNorm{p}.graph(); });
  });
}
