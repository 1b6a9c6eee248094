// SPDX-License-Identifier: MIT
// Tests which chains become the CUDA backend's own ops, and that a fused graph gives the same results. The reference is
// ReferenceBackend, with a loop for each op.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/ops/fuse_norms.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/plan/planner.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/models/cifar_fast.hpp>

#include "backends/fused_nets.hpp"
#include "backends/fused_reference.hpp"
#include "backends/fusing_reference.hpp"
#include "engine/comparison.hpp"
#include "graph/random_graph.hpp"

using namespace tutti;
using testing::check_order;
using testing::cifar;
using testing::count;
using testing::FusingReference;
using testing::resnet50;
using testing::train;
using testing::Trained;

namespace {

// Creates ops that this backend cannot run.
class Without : public testing::FusedReference {
 public:
  void rewrite(Graph& g, DType) override { cuda::fuse_norms(g, {}); }
  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& d) override {
    return op_cast<cuda::Conv2dStatistics>(op) != nullptr ? nullptr : FusedReference::kernel(op, d);
  }
};

Graph fast_net() {
  Builder b(3, 16, 16);
  models::cifar_fast(b, b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F}), {.widths = {4, 6, 4}});
  return std::move(b).take();
}

Plan plan_of(const Graph& g, std::int64_t rows, DType compute) {
  const ArenaLayout parameters = parameter_layout(g, DType::f32), states = state_layout(g, DType::f32);
  PlanOptions o;
  o.rows = rows;
  o.compute = compute;
  o.shards = 1;
  const PlanQueries q{[](NodeId, const NodeDesc&) { return Partition{}; }, [](NodeId) { return std::size_t{0}; }, true};
  return make_plan(g, o, q, parameters, states);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0, size = 1e-300;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(a[i] - b[i]));
    size = std::max(size, std::fabs(b[i]));
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return INFINITY;
  }
  return most / size;
}

const std::vector<cuda::NormFusions> ways{{true, false, false},           {true, true, false},
                                          {false, false, true},           {true, true, true},
                                          {true, true, true, true},       {false, false, false, true, true},
                                          {true, true, true, true, true}, {false, false, false, false, true, true}};

}  // namespace

TEST_CASE("in bottlenecks both inner batch norms are fused into their convolutions") {
  Graph g = differentiate(fuse(resnet50(64)));
  const Graph before = g;
  const cuda::FusedLayers l = cuda::fuse_norms(g, {});
  check_order(g);
  // ResNet-50 has 53 convolutions, each followed by a batch norm. In each of 16 blocks, two of the three convolutions
  // have a fused activation.
  CHECK(l.statistics.size() == 53);
  CHECK(l.activation.size() == 32);
  CHECK(l.activation[0] == "layer1.0.conv2");
  CHECK(l.activation[1] == "layer1.0.conv3");
  CHECK(l.backward.size() == 32);
  CHECK(l.any());
  CHECK(count<op::Conv2d>(g) == 0);
  CHECK(count<cuda::Conv2dStatistics>(g) == 53);
  CHECK(count<op::BatchNorm>(g) == 0);
  CHECK(count<cuda::BatchNormFromSums>(g) == 53);
  CHECK(count<cuda::Conv2dBackwardWeightsActivated>(g) == 32);
  CHECK(count<op::Conv2dBackwardWeights>(g) == 21);
  CHECK(count<cuda::Conv2dBackwardDataNorm>(g) == 32);
  CHECK(count<cuda::BatchNormBackwardApply>(g) == 32);
  CHECK(count<op::BatchNormBackward>(g) == 21);
  // No node computes a value again and writes it to memory.
  CHECK(count<op::BatchNormInference>(before) == 32);
  CHECK(count<op::BatchNormInference>(g) == 0);
  // Forward nodes keep their numbers, because evaluation uses the weights that were packed for these numbers.
  for (std::size_t i = 0; !before.nodes[i].backward; ++i) {
    CHECK(before.nodes[i].name == g.nodes[i].name);
    CHECK_FALSE(g.nodes[i].backward);
  }
  // The parameters' gradients keep their order, because all ranks must use the same one.
  const ArenaLayout a = parameter_layout(before, DType::f32), b = parameter_layout(g, DType::f32);
  REQUIRE(a.slices.size() == b.slices.size());
  for (std::size_t i = 0; i < a.slices.size(); ++i) CHECK(a.slices[i].name == b.slices[i].name);
}

TEST_CASE("each kind of fused chain can be switched off separately") {
  const Graph before = differentiate(fuse(resnet50(64)));
  Graph g = before;
  CHECK_FALSE(cuda::fuse_norms(g, {false, false, false}).any());
  CHECK(g.nodes.size() == before.nodes.size());
  g = before;
  cuda::FusedLayers l = cuda::fuse_norms(g, {true, false, false});
  CHECK(l.statistics.size() == 53);
  CHECK(l.activation.empty());
  CHECK(count<op::BatchNormInference>(g) == 32);
  g = before;
  l = cuda::fuse_norms(g, {false, true, true});
  CHECK(l.activation.empty());  // fused activations require fused statistics
  CHECK(l.backward.size() == 32);
  CHECK(count<op::BatchNorm>(g) == 53);
  check_order(g);
}

TEST_CASE("chains in basic blocks and in pre-activation blocks are fused") {
  Graph g = differentiate(fuse(cifar()));
  cuda::FusedLayers l = cuda::fuse_norms(g, {});
  check_order(g);
  CHECK(l.statistics.size() == static_cast<std::size_t>(count<cuda::Conv2dStatistics>(g)));
  CHECK(l.activation.size() == 3);  // one in each block
  g = differentiate(fuse(cifar(true)));
  l = cuda::fuse_norms(g, {});
  check_order(g);
  // The input of a batch norm may be a sum. No convolution can compute its statistics.
  CHECK(count<op::BatchNorm>(g) > 0);
}

TEST_CASE("a chain is not fused if another op reads the value that fusion would remove") {
  const auto chain = [](auto&& more) {
    Builder b(3, 6, 6);
    ValueId x = nn::conv(b, "a", b.normalize({0, 0, 0}, {1, 1, 1}), {.out = 4});
    const ValueId y = nn::batch_norm(b, "bn", x, {.relu = true});
    ValueId z = nn::batch_norm(b, "bn2", nn::conv(b, "b", y, {.out = 4}), {.relu = true});
    z = more(b, y, z);
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("g", z), 3, {}));
    return differentiate(fuse(b.graph()));
  };
  Graph g = chain([](Builder&, ValueId, ValueId z) { return z; });
  CHECK(cuda::fuse_norms(g, {}).activation == std::vector<std::string>{"b"});
  g = chain([](Builder& b, ValueId y, ValueId z) { return b.add("sum", y, z); });
  CHECK(cuda::fuse_norms(g, {}).activation.empty());
  check_order(g);
  // Two convolutions read this value, so it stays in memory and is computed only once.
  g = chain([](Builder& b, ValueId y, ValueId z) {
    return b.add("sum", z, nn::batch_norm(b, "bn3", nn::conv(b, "c", y, {.out = 4}), {}));
  });
  const cuda::FusedLayers l = cuda::fuse_norms(g, {});
  CHECK(l.statistics.size() == 3);
  CHECK(l.activation.empty());
  check_order(g);
}

TEST_CASE("in f64 a fused graph gives the same results except for the last digits") {
  for (const Graph& net : {cifar(), cifar(true), testing::bottlenecks(), fast_net()}) {
    ReferenceBackend plain;
    const Trained want = train(plain, net, DType::f64, 3);
    for (const cuda::NormFusions& o : ways) {
      FusingReference fused(o);
      const Trained got = train(fused, net, DType::f64, 3);
      // Only chains with relu have a fused backward pass.
      CHECK(fused.fused.any() == (o.statistics || (o.backward && count<op::Gelu>(net) == 0)));
      CHECK(got.loss == doctest::Approx(want.loss).epsilon(1e-10));
      CHECK(got.evaluated == doctest::Approx(want.evaluated).epsilon(1e-10));
      CHECK(largest_difference(got.gradients, want.gradients) < 1e-9);
      CHECK(largest_difference(got.states, want.states) < 1e-10);
    }
  }
}

TEST_CASE("in f32 and bf16 a fused graph gives the same results within their precision") {
  const Graph net = cifar(false, 8, 12);
  for (const DType t : {DType::f32, DType::bf16}) {
    ReferenceBackend plain;
    const Trained want = train(plain, net, t, 3);
    FusingReference fused;
    const Trained got = train(fused, net, t, 3);
    CHECK(got.loss == doctest::Approx(want.loss).epsilon(t == DType::f32 ? 1e-5 : 0.03));
    CHECK(largest_difference(got.gradients, want.gradients) < (t == DType::f32 ? 1e-3 : 0.25));
  }
}

TEST_CASE("random nets give the same results in f64 with and without fusion") {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    const Graph net = testing::random_graph(seed, 9);
    ReferenceBackend plain;
    FusingReference fused;
    const Trained want = train(plain, net, DType::f64, seed), got = train(fused, net, DType::f64, seed);
    INFO(seed);
    Graph g = differentiate(fuse(net));
    cuda::fuse_norms(g, {});
    check_order(g);
    CHECK(got.loss == doctest::Approx(want.loss).epsilon(1e-8));
    CHECK(largest_difference(got.gradients, want.gradients) < 1e-6);
  }
}

TEST_CASE("gradients of a fused graph equal finite differences of its loss") {
  const Graph net = cifar();
  FusingReference backend;
  Executor e(backend, net, {DType::f64});
  testing::randomize(e, 4);
  const auto batch = testing::random_batch(net, 4, 4);
  const auto loss = [&] { return e.train(batch.view(), {1, 1}).loss; };
  (void)loss();
  auto* const weights = static_cast<double*>(e.parameter_data());
  const std::size_t n = e.parameters().count;
  const std::vector<double> gradients(static_cast<const double*>(e.gradient_data()),
                                      static_cast<const double*>(e.gradient_data()) + n);
  for (const Slice& s : e.parameters().slices) {
    const std::size_t i = s.offset + s.count / 2;
    const double w = weights[i], h = 1e-6 * (1 + std::fabs(w));
    const auto at = [&](double v) {
      weights[i] = v;
      e.parameters_changed();
      return loss();
    };
    const double slope = (at(w + h) - at(w - h)) / (2 * h);
    at(w);
    INFO(s.name);
    CHECK(slope == doctest::Approx(gradients[i]).epsilon(2e-4).scale(0.01));
  }
}

TEST_CASE("values that are kept are not computed again, and the results have the same bits") {
  for (const Graph& net : {cifar(), cifar(true), testing::bottlenecks()}) {
    Graph g = differentiate(fuse(net));
    CHECK(count<op::BatchNormInference>(g) > 0);
    cuda::fuse_norms(g, {false, false, false, true});
    check_order(g);
    CHECK(count<op::BatchNormInference>(g) == 0);
    for (const DType t : {DType::f64, DType::bf16}) {
      FusingReference plain({false, false, false}), kept({false, false, false, true});
      const Trained want = train(plain, net, t, 3), got = train(kept, net, t, 3);
      CHECK(got.loss == want.loss);
      CHECK(got.gradients == want.gradients);
      CHECK(got.states == want.states);
      CHECK(got.evaluated == want.evaluated);
    }
  }
}

TEST_CASE("residual batch norms with relu write a mask for their gradients, which gives the same bits") {
  for (const std::int64_t width : {8, 24, 4}) {
    const Graph net = cifar(false, width, 5);
    Graph g = differentiate(fuse(net));
    const int norms = count<op::BatchNormBackward>(g);
    cuda::fuse_norms(g, {false, false, false, true, true});
    check_order(g);
    const int masks = count<cuda::BatchNormWithMask>(g);
    CHECK(masks == (width % 8 == 0 ? 3 : 2));  // one for each block whose channels are a multiple of 8
    CHECK(count<cuda::BatchNormBackwardFromMask>(g) == masks);
    CHECK(count<op::BatchNormBackward>(g) == norms - masks);
    for (const DType t : {DType::f64, DType::bf16}) {
      FusingReference plain({false, false, false, true}), masked({false, false, false, true, true});
      const Trained want = train(plain, net, t, 3), got = train(masked, net, t, 3);
      CHECK(got.loss == want.loss);
      CHECK(got.gradients == want.gradients);
      CHECK(got.states == want.states);
      CHECK(got.evaluated == want.evaluated);
    }
  }
}

TEST_CASE("a batch norm that adds a shortcut's batch norm is joined with it, which gives the same bits") {
  // ResNet-50 has four such blocks.
  Graph large = differentiate(fuse(resnet50(64)));
  const Graph before = large;
  const cuda::FusedLayers l = cuda::fuse_norms(large, {false, false, false, true, true, true});
  check_order(large);
  CHECK_FALSE(l.any());
  CHECK(l.shortcuts == std::vector<std::string>{"layer1.0.downsample.1", "layer2.0.downsample.1",
                                                "layer3.0.downsample.1", "layer4.0.downsample.1"});
  CHECK(count<cuda::BatchNormOfShortcut>(large) == 4);
  CHECK(count<cuda::BatchNormAddShortcut>(large) == 4);
  CHECK(count<cuda::BatchNormBackwardAddShortcut>(large) == 4);
  CHECK(count<cuda::BatchNormBackwardOfShortcut>(large) == 4);
  CHECK(count<cuda::BatchNormWithMask>(large) == 12);
  const ArenaLayout a = parameter_layout(before, DType::f32), b = parameter_layout(large, DType::f32);
  REQUIRE(a.slices.size() == b.slices.size());
  for (std::size_t i = 0; i < a.slices.size(); ++i) CHECK(a.slices[i].name == b.slices[i].name);
  for (std::size_t i = 0; !before.nodes[i].backward; ++i) CHECK(before.nodes[i].name == large.nodes[i].name);
  for (const Graph& net : {cifar(false, 8, 5), testing::bottlenecks()}) {
    Graph g = differentiate(fuse(net));
    const std::size_t projections = net.nodes.size() == testing::bottlenecks().nodes.size() ? 1 : 2;
    CHECK(cuda::fuse_norms(g, {false, false, false, true, true, true}).shortcuts.size() == projections);
    check_order(g);
    for (const bool keep : {true, false})
      for (const DType t : {DType::f64, DType::bf16}) {
        FusingReference plain({false, false, false, keep, true}), joined({false, false, false, keep, true, true});
        const Trained want = train(plain, net, t, 3), got = train(joined, net, t, 3);
        CHECK_FALSE(joined.fused.shortcuts.empty());
        CHECK(got.loss == want.loss);
        CHECK(got.gradients == want.gradients);
        CHECK(got.states == want.states);
        CHECK(got.evaluated == want.evaluated);
      }
  }
}

TEST_CASE(
    "the batch norm of a shortcut stays separate if its output has another reader, a relu, or is not made by a norm") {
  const auto shortcuts = [](auto&& shortcut, bool also, std::int64_t width = 8, bool relu = true) {
    Builder b(3, 6, 6);
    const ValueId x = nn::conv(b, "stem", b.normalize({0, 0, 0}, {1, 1, 1}), {.out = width});
    const ValueId s = shortcut(b, x);
    ValueId y = nn::batch_norm(b, "bn", nn::conv(b, "conv", x, {.out = width}), {.relu = relu, .residual = s});
    if (also) y = b.add("sum", y, s);
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("g", y), 3, {}));
    Graph g = differentiate(fuse(b.graph()));
    const auto l = cuda::fuse_norms(g, {false, false, false, true, true, true});
    check_order(g);
    CHECK(count<cuda::BatchNormAddShortcut>(g) == static_cast<int>(l.shortcuts.size()));
    return l.shortcuts.size();
  };
  const auto norm = [](bool relu) {
    return [relu](Builder& b, ValueId x) { return nn::batch_norm(b, "down", x, {.relu = relu}); };
  };
  CHECK(shortcuts(norm(false), false) == 1);
  CHECK(shortcuts(norm(false), true) == 0);
  CHECK(shortcuts(norm(true), false) == 0);
  CHECK(shortcuts([](Builder&, ValueId x) { return x; }, false) == 0);
  CHECK(shortcuts(norm(false), false, 12) == 0);        // no mask: the channels are not a multiple of 8
  CHECK(shortcuts(norm(false), false, 8, false) == 0);  // no mask without a relu
  // If convolutions compute the sums of the norms, these have kernels of their own.
  Graph g = differentiate(fuse(resnet50(64)));
  CHECK(cuda::fuse_norms(g, {true, true, true, true, true, true}).shortcuts.empty());
  // Nor is anything joined without masks, or in a graph for evaluation.
  g = differentiate(fuse(resnet50(64)));
  CHECK(cuda::fuse_norms(g, {false, false, false, true, false, true}).shortcuts.empty());
  g = inference(fuse(resnet50(64)));
  CHECK(cuda::fuse_norms(g, {false, false, false, true, true, true}).shortcuts.empty());
}

TEST_CASE("values that fusion removes take no memory") {
  const Graph before = differentiate(fuse(resnet50(224)));
  Graph g = before;
  cuda::fuse_norms(g, {});
  for (const std::int64_t rows : {16, 256}) {
    const Plan a = plan_of(before, rows, DType::bf16), b = plan_of(g, rows, DType::bf16);
    int vanished = 0;
    for (std::size_t v = 0; v < before.values.size(); ++v)
      vanished += a.values[v].where == ValueStorage::activation && b.values[v].where == ValueStorage::nowhere ? 1 : 0;
    CHECK(vanished == 64);  // 64 values of the forward and the backward pass
    // The peak is at the end of the forward pass, with the values that both graphs keep. The fused graph adds a few
    // values for each channel.
    CHECK(b.activation_bytes < a.activation_bytes + (std::size_t{2} << 20));
  }
}

TEST_CASE("an op that the backend cannot run is refused when the plan is made") {
  Without backend;
  Executor e(backend, cifar());
  CHECK_THROWS_WITH_AS((void)e.prepare(2, true), doctest::Contains("got conv2d_statistics"), Error);
}

TEST_CASE("an op that only one backend has is printed by name and found by type, and other backends refuse it") {
  Graph copy;
  {
    Graph g = differentiate(fuse(cifar()));
    (void)cuda::fuse_norms(g, {});
    copy = g;  // keeps the data to which the ops of g refer
  }
  const Node& n = copy.nodes[1];
  CHECK(name_of(n.op) == "conv2d_statistics");
  CHECK(reads_weights(n.op));
  REQUIRE(op_cast<cuda::Conv2dStatistics>(n.op) != nullptr);
  CHECK(op_cast<cuda::Conv2dStatistics>(n.op)->kernel_h == 3);
  CHECK(op_cast<cuda::BatchNormFromSums>(n.op) == nullptr);
  CHECK(op_cast<op::Conv2d>(n.op) == nullptr);
  CHECK(op_cast<cuda::Conv2dStatistics>(op::Relu{}) == nullptr);
  struct Stranger : ReferenceBackend {
    void rewrite(Graph& g, DType) override { (void)cuda::fuse_norms(g, {}); }
  } backend;
  Executor e(backend, cifar());
  CHECK_THROWS_WITH_AS((void)e.prepare(2, true),
                       "[conv1] expected an op that backend 'reference' runs, got conv2d_statistics.", UsageError);
}
