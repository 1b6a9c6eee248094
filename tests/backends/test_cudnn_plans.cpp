// SPDX-License-Identifier: MIT
// takes long
// Tests cuDNN's plans for tutti's nets on GPUs of which only a description exists (tests/backends/devices), and which
// fusions cuDNN refuses for which GPU. describe_device prints such descriptions; these were written by hand, from
// cudaDeviceProp and published data sheets. A stand-in replaces the driver, so the tests use no GPU.
#include <tutti/backends/cuda/cudnn/convolution.hpp>
#include <tutti/backends/cuda/cudnn/norm_fusion.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "cudnn_shapes.hpp"
#include "described_gpus.hpp"

using namespace tutti;
using namespace tutti::cuda;
using cudnn::OpGraph;
using cudnn::Target;
using testing::no_stand_in;

namespace {

constexpr std::array passes{ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights};
constexpr std::size_t table_version = 919;  // the expected fusions are those of this version of cuDNN

// The GPUs, in the order of every table in this file.
constexpr std::array<const char*, 4> gpus{"h200", "a100", "b200", "rtx5090"};
constexpr std::size_t h200 = 0, a100 = 1, b200 = 2, rtx5090 = 3;
// The tables omit these two: GPUs before compute capability 8.0 have no bf16, and cuDNN has no fusions for them.
constexpr std::size_t t4 = gpus.size(), v100 = t4 + 1;
const char* name_of_gpu(std::size_t gpu) { return gpu == t4 ? "t4" : gpu == v100 ? "v100" : gpus[gpu]; }

const Target& target_of(std::size_t gpu) { return testing::target_of(name_of_gpu(gpu)); }
std::vector<cudnn::Plan> plan(std::size_t gpu, OpGraph& graph, cudnn::Refusal& refusal, bool fusion,
                              const cudnn::EngineFilter& filter = {}) {
  return testing::plans_for(name_of_gpu(gpu), graph, refusal, fusion, filter);
}

void check_round_trip(std::size_t gpu, const cudnn::Plan& p) {
  const std::string json = p.json();
  const cudnn::Plan again(target_of(gpu), json, p.name());
  CHECK(again.workspace_bytes() == p.workspace_bytes());
  CHECK(again.json() == json);
}

// Returns all convolutions in tutti's nets.
std::set<ConvProblem> problems(DType type) {
  std::set<ConvProblem> all;
  for (const auto& [net, rows] : testing::planned_nets()) all.merge(testing::shapes_of(net, rows, type).convolutions);
  return all;
}

// Checks the plans for all GPUs, or for the GPU with the index `one`.
void check_convolutions(DType type, bool exact, std::optional<std::size_t> one = {}) {
  std::vector<OpGraph> graphs;
  for (const ConvProblem& p : problems(type))
    for (const ConvPass pass : passes) graphs.push_back(cudnn::convolution_graph(pass, p, type));
  CHECK(graphs.size() > 250);
  for (std::size_t gpu = one.value_or(0); gpu < (one ? *one + 1 : gpus.size()); ++gpu)
    for (const bool deterministic : {false, true})
      for (OpGraph& graph : graphs) {
        INFO(gpus[gpu], deterministic ? ", deterministic: " : ": ", graph.name());
        cudnn::Refusal refusal;
        const auto plans = plan(gpu, graph, refusal, false, {deterministic, exact});
        INFO(refusal.why);
        CHECK(plans.size() == 1);
        if (!plans.empty()) check_round_trip(gpu, plans[0]);
      }
}

// Counts the planned and refused fusions of one kind, and lists those that were not expected.
class Row {
 public:
  Row(std::string kind, DType type) : kind_(std::move(kind)), type_(type) {}

  void plan(std::size_t gpu, OpGraph graph, bool expected) {
    cudnn::Refusal refusal;
    const auto plans = ::plan(gpu, graph, refusal, true);
    const bool planned = !plans.empty();
    ++(planned ? planned_ : refused_)[gpu];
    if (planned) check_round_trip(gpu, plans[0]);
    if (planned == expected) return;
    differences_ += std::string(gpus[gpu]) + (planned ? " has now " : " has no longer ") + graph.name();
    differences_ += (planned ? std::string() : " (" + refusal.why + ")") + "\n";
  }
  // Prints the row. If another version of cuDNN differs, check the tables here and in the documents.
  void finish() const {
    std::printf("%-40s %-5s", kind_.c_str(), std::string(name_of(type_)).c_str());
    for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu)
      if (const int all = planned_[gpu] + refused_[gpu]; all > 0)
        std::printf("  %s %d of %d", gpus[gpu], planned_[gpu], all);
    std::puts("");
    if (differences_.empty()) return;
    if (cudnnGetVersion() / 100 == table_version)
      FAIL_CHECK(differences_);
    else
      std::printf("SKIP: cuDNN %s differs from what is expected of 9.19:\n%s",
                  cudnn::version_text(cudnnGetVersion()).c_str(), differences_.c_str());
  }

 private:
  std::string kind_, differences_;
  DType type_;
  std::array<int, gpus.size()> planned_{}, refused_{};
};

// Returns whether a fusion of this convolution is expected.
using ValueStorage = bool (*)(const ConvProblem&);
bool everywhere(const ConvProblem&) { return true; }
bool nowhere(const ConvProblem&) { return false; }

template <class MakeGraph>
void check_fusion(const std::string& kind, DType type, const std::array<ValueStorage, gpus.size()>& expected,
                  const std::array<bool, gpus.size()>& all_nets, MakeGraph&& graph) {
  const std::set<ConvProblem> of_all = problems(type), of_one = testing::resnet50_shapes(256, type).convolutions;
  Row row(kind, type);
  for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu)
    for (const ConvProblem& p : all_nets[gpu] ? of_all : of_one)
      // Skips the first convolution of a net, which has no activation before it.
      if (p.in_channels % 8 == 0) row.plan(gpu, graph(p), expected[gpu](p));
  row.finish();
}

// Returns the graphs of all forms of a batch norm.
std::vector<OpGraph> forms_of(const NormProblem& n) {
  std::vector<OpGraph> forms;
  for (const bool residual : {false, true}) forms.push_back(BatchNormAddRelu{n, residual, true}.graph());
  forms.push_back(BatchNormAddRelu{n, false, false}.graph());
  for (const bool relu : {false, true}) forms.push_back(BatchNormAddReluBackward{n, relu}.graph());
  return forms;
}

}  // namespace

// These cases check one GPU for each type. The nightly cases check all GPUs.
TEST_CASE("cuDNN plans every f32 convolution of tutti's nets for an H200, exact") {
  if (!no_stand_in()) check_convolutions(DType::f32, true, h200);
}
TEST_CASE("cuDNN plans every f32 convolution of tutti's nets for an A100, with TF32") {
  if (!no_stand_in()) check_convolutions(DType::f32, false, a100);
}
TEST_CASE("cuDNN plans every bf16 convolution of tutti's nets for a B200") {
  if (!no_stand_in()) check_convolutions(DType::bf16, false, b200);
}
TEST_CASE("cuDNN plans every f16 convolution of tutti's nets for an RTX 5090") {
  if (!no_stand_in()) check_convolutions(DType::f16, false, rtx5090);
}
TEST_CASE("cuDNN plans every f32 convolution of tutti's nets for every GPU, exact" * doctest::test_suite("nightly")) {
  if (!no_stand_in()) check_convolutions(DType::f32, true);
}
TEST_CASE("cuDNN plans every f32 convolution of tutti's nets for every GPU, with TF32" *
          doctest::test_suite("nightly")) {
  if (!no_stand_in()) check_convolutions(DType::f32, false);
}
TEST_CASE("cuDNN plans every bf16 convolution of tutti's nets for every GPU" * doctest::test_suite("nightly")) {
  if (!no_stand_in()) check_convolutions(DType::bf16, false);
}
TEST_CASE("cuDNN plans every f16 convolution of tutti's nets for every GPU" * doctest::test_suite("nightly")) {
  if (!no_stand_in()) check_convolutions(DType::f16, false);
}

namespace {

void check_resnet50_without_bf16(std::size_t gpu) {
  for (const DType type : {DType::f32, DType::f16})
    for (const ConvProblem& p : testing::resnet50_shapes(64, type).convolutions)
      for (const ConvPass pass : passes) {
        OpGraph graph = cudnn::convolution_graph(pass, p, type);
        cudnn::Refusal refusal;
        const auto plans = plan(gpu, graph, refusal, false, {false, type == DType::f32});
        INFO(graph.name(), ": ", refusal.why);
        CHECK(plans.size() == 1);
      }
}

}  // namespace

TEST_CASE("cuDNN plans the f32 and f16 convolutions of ResNet-50 for a T4") {
  if (!no_stand_in()) check_resnet50_without_bf16(t4);
}
TEST_CASE("cuDNN before 9.11 plans the f32 and f16 convolutions of ResNet-50 for a V100") {
  if (no_stand_in()) return;
  if (cudnnGetVersion() >= 91100)
    std::printf("SKIP: cuDNN %s does not know compute capability 7.0\n",
                cudnn::version_text(cudnnGetVersion()).c_str());
  else
    check_resnet50_without_bf16(v100);
}

// The heuristics' list begins with two dozen engines that round to TF32. The planner must skip them: the exact engines
// follow later in the list, before the first fallback engine.
TEST_CASE("fewer than a tenth of the exact f32 convolutions on an H200 need the fallback engine") {
  if (no_stand_in()) return;
  int all = 0, fallbacks = 0;
  for (const ConvProblem& p : testing::resnet50_shapes(256, DType::f32).convolutions)
    for (const ConvPass pass : {ConvPass::forward, ConvPass::backward_data}) {
      OpGraph graph = cudnn::convolution_graph(pass, p, DType::f32);
      cudnn::Refusal refusal;
      const auto plans = plan(h200, graph, refusal, false, {false, true});
      REQUIRE(plans.size() == 1);
      ++all;
      if (plans[0].json().find("\"engineId\":1,") != std::string::npos) ++fallbacks;
    }
  std::printf("%d of %d exact f32 plans are of the fallback engine\n", fallbacks, all);
  CHECK(10 * fallbacks < all);
}

// Only kernels for Hopper use clusters of blocks; kernels for Ampere do not.
TEST_CASE("convolutions in 16 bits on an H200 use Hopper's kernels") {
  if (no_stand_in()) return;
  for (const DType type : {DType::bf16, DType::f16}) {
    int all = 0;
    std::array<int, 2> clusters{};
    for (const ConvProblem& p : testing::resnet50_shapes(256, type).convolutions)
      for (const ConvPass pass : passes) {
        ++all;
        for (std::size_t gpu = 0; gpu < clusters.size(); ++gpu) {
          OpGraph graph = cudnn::convolution_graph(pass, p, type);
          cudnn::Refusal refusal;
          const auto plans = plan(gpu, graph, refusal, false);
          REQUIRE(plans.size() == 1);
          if (plans[0].json().find("TILE_CGA") != std::string::npos) ++clusters[gpu];
        }
      }
    std::printf("of %d %s plans have clusters: %s %d, %s %d\n", all, std::string(name_of(type)).c_str(), gpus[0],
                clusters[0], gpus[1], clusters[1]);
    CHECK(clusters[1] == 0);
    if (cudnnGetVersion() / 100 == table_version) CHECK(10 * clusters[0] >= 9 * all);
  }
}

TEST_CASE("a plan for one GPU is refused for another GPU") {
  if (no_stand_in()) return;
  const ConvProblem p{256, 64, 56, 56, 64, 56, 56, 3, 3, 1, 1, 1, 1, 1, 1, DType::bf16};
  for (const ConvPass pass : passes)
    for (std::size_t from = 0; from < gpus.size(); ++from) {
      OpGraph graph = cudnn::convolution_graph(pass, p, p.type);
      cudnn::Refusal refusal;
      const auto plans = plan(from, graph, refusal, false);
      REQUIRE(plans.size() == 1);
      for (std::size_t to = 0; to < gpus.size(); ++to) {
        INFO("for ", gpus[from], ", given to ", gpus[to]);
        if (to == from)
          CHECK_NOTHROW(cudnn::Plan(target_of(to), plans[0].json(), "again"));
        else
          CHECK_THROWS_AS(cudnn::Plan(target_of(to), plans[0].json(), "again"), cudnn::CudnnError);
      }
    }
}

TEST_CASE("a stored plan works on every GPU of its kind while the driver version is the same") {
  if (no_stand_in()) return;
  const ConvProblem p{256, 64, 56, 56, 64, 56, 56, 3, 3, 1, 1, 1, 1, 1, 1, DType::bf16};
  OpGraph graph = cudnn::convolution_graph(ConvPass::forward, p, p.type);
  cudnn::Refusal refusal;
  const auto plans = plan(h200, graph, refusal, false);
  REQUIRE(plans.size() == 1);
  const auto with = [](const std::string& key, const std::string& value) {
    std::string text = testing::description_of("h200");
    const std::string name = "\"" + key + "\":";
    const std::size_t at = text.find(name);
    REQUIRE(at != std::string::npos);
    return text.replace(at + name.size(), text.find(',', at) - at - name.size(), value);
  };
  const auto taken = [&](const std::string& key, const std::string& value) {
    const std::string description = with(key, value);
    const Target target{std::string_view(description)};
    try {
      return cudnn::Plan(target, plans[0].json(), "again").workspace_bytes() == plans[0].workspace_bytes();
    } catch (const cudnn::CudnnError& e) {
      CHECK(e.unsupported());
      return false;
    }
  };
  for (const char* key : {"cudaDeviceId", "pciDeviceId"}) CHECK(taken(key, "3"));
  CHECK(taken("totalGlobalMem", "150109880320"));
  CHECK(taken("smClockRateKHz", "1755000"));
  CHECK_FALSE(taken("driverVer", "12080"));
  CHECK_FALSE(taken("multiProcessorCount", "114"));
}

TEST_CASE(
    "cuDNN fuses an activation before a convolution, and statistics after the convolution, on the recorded GPUs") {
  if (no_stand_in()) return;
  const auto graph = [](const ConvProblem& p) { return ScaleBiasReluConvStatistics{p}.graph(); };
  const std::string kind = to_string(FusedPass::activated_statistics);
  check_fusion(kind, DType::f16, {everywhere, everywhere, nowhere, nowhere}, {true, true, true, true}, graph);
  check_fusion(kind, DType::bf16, {nowhere, nowhere, nowhere, nowhere}, {true, true, true, true}, graph);
}

TEST_CASE("cuDNN fuses an activation before the gradient of the weights on the recorded GPUs") {
  if (no_stand_in()) return;
  const auto graph = [](const ConvProblem& p) { return ScaleBiasReluConvBackwardWeights{p, p.type}.graph(); };
  const std::string kind = to_string(FusedPass::activated_backward_weights);
  check_fusion(kind, DType::f16, {everywhere, everywhere, everywhere, everywhere}, {true, false, true, true}, graph);
  check_fusion(kind, DType::bf16, {nowhere, nowhere, nowhere, nowhere}, {true, true, true, true}, graph);
}

TEST_CASE("cuDNN fuses the backward pass through a convolution and a batch norm on the recorded GPUs") {
  if (no_stand_in()) return;
  const auto graph = [](const ConvProblem& p) { return ConvBackwardDataReluBatchNorm{p}.graph(); };
  const std::string kind = to_string(FusedPass::backward_data_norm);
  check_fusion(kind, DType::f16, {everywhere, everywhere, everywhere, everywhere}, {true, true, true, true}, graph);
  check_fusion(kind, DType::bf16, {nowhere, nowhere, nowhere, nowhere}, {true, true, true, true}, graph);
}

TEST_CASE("every GPU fuses statistics after a convolution" * doctest::test_suite("nightly")) {
  if (no_stand_in()) return;
  for (const DType type : {DType::f16, DType::bf16}) {
    Row row(to_string(FusedPass::statistics), type);
    // cuDNN compiles most of these batch norms, which takes half a second or more.
    const std::array<ConvProblem, 2> stem_and_3x3{
        ConvProblem{256, 4, 224, 224, 64, 112, 112, 7, 7, 2, 2, 3, 3, 3, 3, type},
        ConvProblem{256, 128, 28, 28, 128, 28, 28, 3, 3, 1, 1, 1, 1, 1, 1, type},
    };
    for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu)
      for (const ConvProblem& p : stem_and_3x3) row.plan(gpu, ScaleBiasReluConvStatistics{p, false}.graph(), true);
    row.finish();
  }
}

TEST_CASE("cuDNN computes the gradient of the weights only in the type of the activations") {
  if (no_stand_in()) return;
  for (const DType type : {DType::f16, DType::bf16}) {
    Row row("backward weights to f32", type);
    for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu)
      for (const ConvProblem& p : testing::resnet50_shapes(256, type).convolutions)
        row.plan(gpu, cudnn::convolution_graph(ConvPass::backward_weights, p, DType::f32), false);
    row.finish();
  }
}

TEST_CASE("images are padded to the number of channels that cuDNN reads without a copy, on every GPU") {
  if (no_stand_in()) return;
  // In f16 cuDNN has forward kernels for 4 channels; in bf16 it would pad them to 8 in its workspace.
  for (const auto& [type, channels] : {std::pair{DType::bf16, 8}, {DType::f16, 4}}) {
    CHECK(padded_in_channels(type, 3) == channels);
    const std::int64_t images = std::int64_t{256} * 224 * 224 * channels * 2;
    for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu)
      for (const ConvPass pass : {ConvPass::forward, ConvPass::backward_weights}) {
        if (type == DType::f16 && pass != ConvPass::forward) continue;
        const ConvProblem p{256, channels, 224, 224, 64, 112, 112, 7, 7, 2, 2, 3, 3, 3, 3, type};
        auto graph = cudnn::convolution_graph(pass, p, type);
        INFO(gpus[gpu] << " " << graph.name());
        cudnn::Refusal refusal;
        const auto plans = plan(gpu, graph, refusal, false);
        REQUIRE(plans.size() == 1);
        CHECK(static_cast<std::int64_t>(plans[0].workspace_bytes()) < images / 8);
      }
  }
}

// cuDNN compiles each of these batch norms, which takes about a second.
TEST_CASE("cuDNN has every form of batch norm in one kernel for the H200") {
  if (no_stand_in()) return;
  Row row("batch norm", DType::bf16);
  for (OpGraph& form : forms_of({128, 64, 8, 8, DType::bf16})) row.plan(h200, std::move(form), true);
  const NormProblem large{256, 256, 56, 56, DType::bf16};
  row.plan(h200, BatchNormAddRelu{large, true, true}.graph(), true);
  row.plan(h200, BatchNormAddReluBackward{large, true}.graph(), true);
  row.finish();
}
TEST_CASE("cuDNN has batch norm, addition and relu in one kernel for every GPU" * doctest::test_suite("nightly")) {
  if (no_stand_in()) return;
  for (const DType type : {DType::f16, DType::bf16}) {
    const NormProblem n{128, 64, 8, 8, type};
    Row forward("batch-norm-add-relu", type), backward("batch-norm-backward-drelu-recomputed", type);
    for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) {
      forward.plan(gpu, BatchNormAddRelu{n, true, true}.graph(), true);
      backward.plan(gpu, BatchNormAddReluBackward{n, true}.graph(), true);
    }
    forward.finish();
    backward.finish();
  }
}
