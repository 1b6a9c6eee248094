// SPDX-License-Identifier: MIT
// Tests cuDNN without a device: descriptors, and the graphs of tutti's nets. test_cudnn_plans.cpp tests plans.
#include <tutti/backends/cuda/cudnn/convolution.hpp>
#include <tutti/backends/cuda/cudnn/norm_fusion.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "cudnn_shapes.hpp"

using namespace tutti;
using namespace tutti::cuda;
using cudnn::Descriptor;
using cudnn::OpGraph;
using doctest::Contains;
namespace attr = cudnn::attr;

namespace {

constexpr std::array types{DType::f32, DType::bf16, DType::f16};
constexpr std::array passes{ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights};

// Returns how many of cuDNN's engines support the pattern of a graph; 0 if cuDNN does not know the pattern.
std::int64_t engines(OpGraph g) { return g.finish(nullptr).get(attr::graph_engines); }

ConvProblem small(DType t) { return {8, 64, 56, 56, 32, 28, 28, 3, 3, 2, 2, 1, 1, 1, 1, t}; }

struct Case {
  std::string name;
  OpGraph graph;
};
// Returns every graph that one of tutti's nets may request.
std::vector<Case> graphs_of(const testing::Shapes& s, std::int64_t rows, DType type, bool fused) {
  std::vector<Case> list;
  const auto add = [&](OpGraph g) {
    std::string name = g.name();
    list.push_back({std::move(name), std::move(g)});
  };
  for (const ConvProblem& p : s.convolutions) {
    for (const ConvPass pass : passes) add(cudnn::convolution_graph(pass, p, type));
    if (!fused) continue;
    add(ScaleBiasReluConvStatistics{p}.graph());
    add(ScaleBiasReluConvStatistics{p, false}.graph());
    add(ScaleBiasReluConvBackwardWeights{p, type}.graph());
    add(ConvBackwardDataReluBatchNorm{p}.graph());
  }
  for (const auto& [channels, size] : s.norms) {
    if (!fused) break;
    const NormProblem n{rows, channels, size, size, type};
    for (const bool residual : {false, true}) add(BatchNormAddRelu{n, residual, true}.graph());
    add(BatchNormAddRelu{n, false, false}.graph());
    for (const bool relu : {false, true}) add(BatchNormAddReluBackward{n, relu}.graph());
  }
  return list;
}

}  // namespace

TEST_CASE("cuDNN descriptors keep the attributes that were set") {
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor x");
  CHECK(d);
  CHECK(d.name() == "tensor x");
  d.set(attr::tensor_uid, 7).set(attr::tensor_type, CUDNN_DATA_BFLOAT16).set(attr::tensor_alignment, 16);
  d.set(attr::tensor_dimensions, std::array<std::int64_t, 4>{8, 64, 5, 6});
  d.set(attr::tensor_strides, std::vector<std::int64_t>{1920, 1, 384, 64}).finalize();
  CHECK(d.get(attr::tensor_uid) == 7);
  CHECK(d.get(attr::tensor_type) == CUDNN_DATA_BFLOAT16);
  CHECK(d.get_some(attr::tensor_dimensions, 8) == std::vector<std::int64_t>{8, 64, 5, 6});
  CHECK_FALSE(d.get(attr::tensor_virtual));
  Descriptor moved = std::move(d);
  CHECK(moved.get(attr::tensor_uid) == 7);
  CHECK_FALSE(d);  // NOLINT(bugprone-use-after-move): that is the point
}

TEST_CASE("error messages of cuDNN name the descriptor and the attribute") {
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor x of conv1");
  CHECK_THROWS_WITH_AS(d.set(attr::conv_spatial_dims, 2), Contains("[cudnn tensor x of conv1]"), cudnn::CudnnError);
  CHECK_THROWS_WITH_AS(d.set(attr::conv_spatial_dims, 2), Contains("CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS to be taken"),
                       DeviceError);
  CHECK_THROWS_WITH_AS((void)d.get(attr::tensor_uid), Contains("CUDNN_STATUS_"), cudnn::CudnnError);
  CHECK_THROWS_WITH_AS(d.finalize(), Contains("a complete and supported descriptor"), cudnn::CudnnError);
  Descriptor op(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, "operation convolution of conv1");
  CHECK_THROWS_WITH_AS(op.set(attr::forward_x, Descriptor()), Contains("FORWARD_X, got none"), DeviceError);
  try {
    op.finalize();
    FAIL("an operation without operands was taken");
  } catch (const cudnn::CudnnError& e) {
    CHECK(e.exit_code() == 4);
    CHECK_FALSE(e.unsupported());
    CHECK(e.status() != CUDNN_STATUS_SUCCESS);
  }
  CHECK_THROWS_WITH_AS((void)OpGraph("g").tensor(1, "x", {8, -64, 1, 1}, CUDNN_DATA_FLOAT), Contains("tensor x of g"),
                       DeviceError);
}

TEST_CASE("cuDNN's version is formatted as text") {
  CHECK(cudnn::version_text(91900) == "9.19.0");
  CHECK(cudnn::version_text(91103) == "9.11.3");
  CHECK(cudnnGetVersion() >= 90800);
}

TEST_CASE("extents that do not fit together are refused before cuDNN is called") {
  for (const auto pass : passes) {
    ConvProblem p = small(DType::bf16);
    p.out_height = 27;
    CHECK_THROWS_WITH_AS((void)cudnn::convolution_graph(pass, p, p.type), Contains("an output of 28x28"), ShapeError);
    p = small(DType::bf16);
    p.stride_w = 0;
    CHECK_THROWS_AS((void)cudnn::convolution_graph(pass, p, p.type), ShapeError);
    p = small(DType::bf16);
    p.kernel_h = 70;
    CHECK_THROWS_WITH_AS((void)cudnn::convolution_graph(pass, p, p.type), Contains("no larger"), ShapeError);
    p = small(DType::i32);
    CHECK_NOTHROW((void)to_string(p));
    p.type = DType::f64;
    CHECK_THROWS_AS((void)cudnn::convolution_graph(pass, p, p.type), UsageError);
  }
  CHECK(to_string(small(DType::f16)) == "f16 n8 c64 56x56 k32 28x28 f3x3 s2x2 p1,1,1,1");
}

TEST_CASE("graphs list the operands that a run needs") {
  OpGraph g = cudnn::convolution_graph(ConvPass::forward, small(DType::bf16), DType::bf16);
  const std::vector<std::pair<std::int64_t, std::size_t>> conv{
      {cudnn::conv_a, 8 * 64 * 56 * 56 * 2}, {cudnn::conv_b, 32 * 64 * 9 * 2}, {cudnn::conv_out, 8 * 32 * 28 * 28 * 2}};
  CHECK(g.operands() == conv);
  // The list omits values inside the graph and numbers of the host.
  const auto norm = BatchNormAddRelu{{4, 64, 16, 16, DType::f16}, true, true}.graph().operands();
  const auto find = [&](std::int64_t uid) {
    for (const auto& [u, bytes] : norm)
      if (u == uid) return bytes;
    return std::size_t{0};
  };
  CHECK(find(1) == 4 * 64 * 16 * 16 * 2);
  CHECK(find(10) == 64 * 4);
  CHECK(find(13) == 0);
}

TEST_CASE("cuDNN has engines for every convolution of tutti's nets, in every type") {
  for (const DType t : types) {
    const std::array<testing::Shapes, 3> nets{testing::resnet50_shapes(256, t), testing::cifar_shapes(20, 128, t),
                                              testing::cifar_shapes(110, 128, t)};
    CHECK(nets[0].convolutions.size() > 15);
    CHECK(nets[1].convolutions.size() > 4);
    for (const auto& net : nets)
      for (auto& named : graphs_of(net, 128, t, false)) {
        INFO(named.name);
        CHECK(engines(std::move(named.graph)) > 20);
      }
  }
}

TEST_CASE("cuDNN has engines for every fusion of tutti's nets") {
  // A graph without a special pattern, for example two convolutions, has other engines than a known one.
  const ConvProblem p{8, 64, 56, 56, 64, 56, 56, 3, 3, 1, 1, 1, 1, 1, 1, DType::bf16};
  OpGraph two("two");
  const auto& x = two.tensor(1, "x", cudnn::input_of(p), CUDNN_DATA_BFLOAT16);
  const auto& w = two.tensor(2, "w", cudnn::weights_of(p), CUDNN_DATA_BFLOAT16);
  const auto& between = two.inner("between", cudnn::input_of(p), CUDNN_DATA_BFLOAT16);
  two.convolution(cudnn::geometry_of(p), x, w, between);
  two.convolution(cudnn::geometry_of(p), between, w, two.tensor(3, "y", cudnn::output_of(p), CUDNN_DATA_BFLOAT16));
  const std::int64_t general = engines(std::move(two));
  for (const DType t : {DType::bf16, DType::f16}) {
    for (const auto& net : {testing::resnet50_shapes(256, t), testing::cifar_shapes(20, 128, t)})
      for (auto& named : graphs_of(net, 256, t, true)) {
        INFO(named.name);
        const std::int64_t n = engines(std::move(named.graph));
        CHECK(n > 0);
        CHECK(n != general);
      }
  }
}

TEST_CASE("every graph of a fused net is in the list of planned graphs") {
  for (const DType t : {DType::bf16, DType::f16})
    for (const auto& [net, rows] : testing::planned_nets()) {
      std::set<std::string> listed;
      for (const Case& c : graphs_of(testing::shapes_of(net, rows, t), rows, t, true)) listed.insert(c.name);
      const auto wanted = testing::fused_graphs(net, rows, t);
      CHECK(wanted.size() > 10);
      for (const std::string& name : wanted) {
        INFO(name);
        CHECK(listed.count(name) == 1);
      }
    }
}

TEST_CASE("a refusal by cuDNN is stored only if the same call would be refused again") {
  cudnn::Refusal r;
  CHECK(r.lasting);
  r(cudnn::CudnnError("no engine", CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH));
  CHECK(r.lasting);
  CHECK(r.why == "no engine");
  r(cudnn::CudnnError("no memory", CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED));
  CHECK_FALSE(r.lasting);
  r(cudnn::CudnnError("no engine", CUDNN_STATUS_NOT_SUPPORTED));
  CHECK_FALSE(r.lasting);
}

TEST_CASE("the operands that a fusion binds are those of its graph") {
  // bind() lists every operand in device memory, and in addition only the host's numbers.
  const auto check = [](const auto& fusion, std::size_t numbers) {
    const auto graph = fusion.graph();
    INFO(graph.name());
    const auto wanted = graph.operands();
    const auto bound = fusion.bind({});
    CHECK(bound.size() == wanted.size() + numbers);
    for (const auto& tensor : wanted) {
      const auto uid = tensor.first;
      INFO(uid);
      CHECK(std::count_if(bound.begin(), bound.end(), [uid](const auto& b) { return b.uid == uid; }) == 1);
    }
  };
  const ConvProblem p = small(DType::bf16);
  const NormProblem n{4, 64, 16, 16, DType::bf16};
  check(ScaleBiasReluConvStatistics{p}, 0);
  check(ScaleBiasReluConvStatistics{p, false}, 0);
  check(ScaleBiasReluConvBackwardWeights{p}, 0);
  check(ConvBackwardDataReluBatchNorm{p}, 0);
  for (const bool relu : {false, true}) {
    for (const bool residual : {false, true}) check(BatchNormAddRelu{n, residual, relu}, 2);
    check(BatchNormAddReluBackward{n, relu}, 0);
  }
}

TEST_CASE("engines are filtered by their numerical notes") {
  using Notes = std::vector<cudnnBackendNumericalNote_t>;
  const cudnn::EngineFilter any, exact{false, true}, same{true, false};
  CHECK(any.allows({}));
  CHECK(any.allows(Notes{CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}));
  CHECK_FALSE(any.allows(Notes{CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}));
  CHECK_FALSE(any.allows(Notes{CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION}));
  CHECK_FALSE(exact.allows(Notes{CUDNN_NUMERICAL_NOTE_TENSOR_CORE}));
  CHECK(exact.allows(Notes{CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}));
  CHECK_FALSE(same.allows(Notes{CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}));
  CHECK(same.allows(Notes{CUDNN_NUMERICAL_NOTE_TENSOR_CORE}));
}

TEST_CASE("an invalid description of a GPU is refused") {
  for (const char* text : {"", "no json", "{}", "[]", "{\"maxGridSize\": 3}"}) {
    INFO(text);
    CHECK_THROWS_WITH_AS(cudnn::Target{std::string_view(text)}, Contains("[cudnn device description]"), DeviceError);
  }
}

TEST_CASE("without a driver the error for a GPU is one line") {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) {
    std::puts("SKIP: there is a GPU");
    return;
  }
  cudaGetLastError();
  CHECK_THROWS_AS(Device(0), DeviceError);
}
