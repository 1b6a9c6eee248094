// SPDX-License-Identifier: MIT
// Checks the planner's promises by a second, independent walk through the plan: for random nets, for the real nets, and
// for every way in which a backend may divide an op.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/plan/planner.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>

#include "graph/plan_check.hpp"
#include "graph/random_graph.hpp"

using namespace tutti;
using testing::at;

namespace {

struct Made {
  Plan plan;
  ArenaLayout parameters;
};

// Makes a plan of a forward graph for training or evaluation, and checks everything.
Made check_plan(const Graph& forward, PlanOptions o, Rng* random) {
  const Graph fused = fuse(forward), train = differentiate(fused);
  const Graph g = o.training ? train : inference(fused);
  Made m;
  m.parameters = parameter_layout(train, o.master);
  const auto op_of = [&](NodeId node) -> const Op& { return g.nodes[at(node)].op; };
  const PlanQueries q{[&](NodeId node, const NodeDesc& d) { return testing::divide(op_of(node), d, random); },
                      [&](NodeId node) {
                        const Value& w = g[g.nodes[at(node)].inputs[1]];
                        return o.compute == o.master ? std::size_t{0} : static_cast<std::size_t>(w.shape.numel()) * 2;
                      }};
  m.plan = make_plan(g, o, q, m.parameters, state_layout(train, o.master));
  testing::PlanCheck(g, m.plan, m.parameters, o.keep_all).run();
  std::size_t packed = 0;
  for (const Pack& k : m.plan.packs) {
    CHECK(k.offset >= packed);
    packed = k.offset + k.bytes;
    CHECK(m.plan.pack_of[at(k.node)] >= 0);
  }
  CHECK(packed <= m.plan.packed_bytes);
  return m;
}

Graph cifar(int depth, bool preactivation) {
  Builder b(3, preactivation ? 28 : 32, preactivation ? 28 : 32);
  models::resnet_cifar(b, b.normalize({0, 0, 0}, {1, 1, 1}), {.depth = depth, .preactivation = preactivation});
  return std::move(b).take();
}

Graph imagenet(int depth) {
  Builder b(3, 224, 224);
  models::resnet(b, b.normalize({0, 0, 0}, {1, 1, 1}), {.depth = depth});
  return std::move(b).take();
}

}  // namespace

TEST_CASE("random nets with random divisions, batch sizes, shards and chunks have valid plans") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Rng r(seed, Purpose::user, 1);
    const Graph g = testing::random_graph(seed, 1 + static_cast<int>(r.below(25)));
    PlanOptions o;
    o.rows = 1 + r.below(40);
    o.shards = 1 + static_cast<int>(r.below(9));
    o.chunk_bytes = 256U << r.below(11);
    o.compute = r.below(2) == 0 ? DType::f32 : DType::bf16;
    o.training = r.below(4) != 0;
    o.keep_all = r.below(5) == 0;
    check_plan(g, o, r.below(2) == 0 ? &r : nullptr);
  }
}

TEST_CASE("the models have valid plans") {
  for (int depth : {8, 20, 56})
    for (bool preactivation : {false, true})
      for (bool training : {true, false}) {
        CAPTURE(depth);
        PlanOptions o;
        o.rows = 128;
        o.training = training;
        o.compute = preactivation ? DType::bf16 : DType::f32;
        check_plan(cifar(depth, preactivation), o, nullptr);
      }
  for (int depth : {18, 50}) {
    CAPTURE(depth);
    PlanOptions o;
    o.rows = 32;
    check_plan(imagenet(depth), o, nullptr);
  }
}

TEST_CASE("values in scratch are not in the arena, and bf16 halves the memory") {
  PlanOptions o;
  o.rows = 128;
  const Graph g = cifar(20, false);
  const Plan f32 = check_plan(g, o, nullptr).plan;
  o.compute = DType::bf16;
  const Plan bf16 = check_plan(g, o, nullptr).plan;
  CHECK(bf16.activation_bytes < f32.activation_bytes * 6 / 10);
  o.training = false;
  const Plan eval = check_plan(g, o, nullptr).plan;
  CHECK(eval.activation_bytes < bf16.activation_bytes / 8);  // it keeps no values for a backward pass
  o.training = true;
  o.keep_all = true;
  CHECK(check_plan(g, o, nullptr).plan.activation_bytes > bf16.activation_bytes);
}

TEST_CASE("planning an empty batch fails; a batch of few rows has few shards") {
  const Graph g = cifar(8, false);
  PlanOptions o;
  o.rows = 0;
  CHECK_THROWS_AS(check_plan(g, o, nullptr), UsageError);
  o.rows = 3;
  const Plan p = check_plan(g, o, nullptr).plan;
  CHECK(p.shards == 3);
  CHECK(p.shard_begin(0) == 0);
  CHECK(p.shard_begin(3) == 3);
}

TEST_CASE("custom op: forward and gradient run, and a missing kernel is an error when the plan is made") {
  const auto net = [](const std::shared_ptr<const CustomOp>& def) {
    Builder b(1, 3, 3);
    const ValueId x = nn::conv(b, "c", b.normalize({0}, {1 / 255.0F}), {.out = 2});
    const ValueId y = def != nullptr ? b.custom("sq", def, {x})[0] : x;
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("p", y), 2, {}));
    return std::pair{std::move(b).take(), std::pair{x, y}};
  };
  const auto fill = [](Executor& e) {
    Rng r(1, Purpose::user);
    auto* w = static_cast<double*>(e.parameter_data());
    for (std::size_t i = 0; i < e.parameters().count; ++i) w[i] = r.normal() / 2;
    e.parameters_changed();
  };
  const std::vector<std::uint8_t> images{3, 100, 200, 30, 40, 250, 1, 7, 90};
  const std::vector<std::int32_t> labels{1};
  ReferenceBackend reference;
  const auto [g, values] = net(testing::square_op());
  Executor e(reference, g, {DType::f64, true});
  fill(e);
  const Metrics m = e.train({images.data(), labels.data(), 1}, {});
  const auto x = e.value(values.first).view<double>(), y = e.value(values.second).view<double>();
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == x[i] * x[i]);
  // Compares the gradient with finite differences.
  const std::vector<double> gradient(static_cast<double*>(e.gradient_data()),
                                     static_cast<double*>(e.gradient_data()) + e.parameters().count);
  const Slice& w = *e.parameters().find("c.weight");
  for (std::size_t i = w.offset; i < w.offset + w.count; ++i) {
    auto* p = static_cast<double*>(e.parameter_data());
    const double keep = p[i], h = 1e-5;
    p[i] = keep + h;
    e.parameters_changed();
    const double up = e.train({images.data(), labels.data(), 1}, {}).loss;
    p[i] = keep - h;
    e.parameters_changed();
    const double down = e.train({images.data(), labels.data(), 1}, {}).loss;
    p[i] = keep;
    CHECK(gradient[i] == doctest::Approx((up - down) / (2 * h)).epsilon(1e-5));
  }
  CHECK(m.rows == 1);

  // The graph uses the kernel with the backend's own name. If there is none, it uses the kernel "host".
  auto named = std::make_shared<CustomOp>(*testing::square_op());
  named->forward["reference"] = [](auto, std::span<const TensorRef> out) {
    for (double& v : out[0].view<double>()) v = 7;
  };
  const auto [h, named_values] = net(named);
  Executor own(reference, h, {DType::f64, true});
  fill(own);
  own.train({images.data(), labels.data(), 1}, {});
  CHECK(own.value(named_values.second).view<double>()[3] == 7);

  for (bool backward : {false, true}) {
    auto missing = std::make_shared<CustomOp>(*testing::square_op());
    auto& kernels = backward ? missing->backward : missing->forward;
    kernels["cuda"] = kernels["host"];
    kernels.erase("host");
    const auto made = net(missing);
    Executor broken(reference, made.first, {DType::f64});
    CHECK_THROWS_WITH_AS(broken.prepare(4, true), doctest::Contains("kernel of the custom op 'square' for backend"),
                         UsageError);
    if (backward) CHECK_NOTHROW(broken.prepare(4, false));
  }
}

TEST_CASE("executor: reading a value that the plan does not keep is an error") {
  ReferenceBackend reference;
  const Graph g = cifar(8, false);
  Executor e(reference, g);
  CHECK_THROWS_AS((void)e.value(g.logits), UsageError);  // the net has not run
}
