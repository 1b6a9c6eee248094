// SPDX-License-Identifier: MIT
// Tests fusion, differentiation, and the net without training ops for an evaluation.
#include <doctest/doctest.h>

#include <memory>
#include <set>
#include <string>

#include <tutti/engine/plan/plan.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/nn/layers.hpp>

#include "graph_checks.hpp"

using namespace tutti;
using namespace tutti::testing;

TEST_CASE("fuse: batch_norm -> add -> relu and batch_norm -> relu become one batch_norm") {
  Net n;
  const ValueId a = n.conv("a", n.x);
  const ValueId y = n.b.relu("r1", nn::batch_norm(n.b, "bn1", a));
  const ValueId z = n.b.relu("r2", n.b.add("sum", nn::batch_norm(n.b, "bn2", n.conv("b", y)), y));
  n.finish(z);
  const Graph g = fuse(n.b.graph());
  check_order(g);
  CHECK(count<op::Relu>(g) == 0);
  CHECK(count<op::Add>(g) == 0);
  REQUIRE(count<op::BatchNorm>(g) == 2);
  const Node& last = g.nodes[static_cast<std::size_t>(g[z].producer)];
  const auto& bn = std::get<op::BatchNorm>(last.op);
  CHECK(bn.relu);
  CHECK(bn.residual);
  CHECK(last.inputs.size() == 6);
  CHECK(last.inputs[5] == y);
  CHECK(last.outputs[0] == z);
}

TEST_CASE("fuse: a summand computed after the batch norm is available when the fused node runs") {
  Net n;
  const ValueId a = n.conv("a", n.x);
  const ValueId bn = nn::batch_norm(n.b, "bn", a);
  const ValueId late = n.conv("late", n.x);
  n.finish(n.b.relu("r", n.b.add("sum", late, bn)));  // the batch norm is the second summand
  const Graph g = fuse(n.b.graph());
  check_order(g);
  CHECK(only<op::BatchNorm>(g).inputs[5] == late);
  CHECK(count<op::Add>(g) == 0);
}

TEST_CASE("fuse: ops are not fused if another op reads a value between them") {
  {
    Net n;
    const ValueId bn = nn::batch_norm(n.b, "bn", n.conv("a", n.x));
    n.finish(n.b.add("sum", n.b.relu("r", bn), n.conv("c", bn)));
    CHECK(count<op::Relu>(fuse(n.b.graph())) == 1);
  }
  {
    Net n;  // x + x
    const ValueId bn = nn::batch_norm(n.b, "bn", n.conv("a", n.x));
    n.finish(n.b.add("sum", bn, bn));
    CHECK(count<op::Add>(fuse(n.b.graph())) == 1);
  }
  {
    Net n;  // two ops read the sum: the batch norm joins with the addition, but not with the relu
    const ValueId a = n.conv("a", n.x);
    const ValueId s = n.b.add("sum", nn::batch_norm(n.b, "bn", a), a);
    n.finish(n.b.add("again", n.b.relu("r", s), s));
    const Graph g = fuse(n.b.graph());
    check_order(g);
    CHECK(count<op::Relu>(g) == 1);
    CHECK(count<op::Add>(g) == 1);
    CHECK(std::get<op::BatchNorm>(only<op::BatchNorm>(g).op).residual);
  }
  {
    Net n;  // the relu before the sum prevents a fusion with it
    const ValueId a = n.conv("a", n.x);
    n.finish(n.b.add("sum", n.b.relu("r", nn::batch_norm(n.b, "bn", a)), a));
    const Graph g = fuse(n.b.graph());
    CHECK(count<op::Add>(g) == 1);
    CHECK(std::get<op::BatchNorm>(only<op::BatchNorm>(g).op).relu);
    CHECK(!std::get<op::BatchNorm>(only<op::BatchNorm>(g).op).residual);
  }
}

TEST_CASE("inference: batch norms read their running statistics") {
  Net n;
  n.finish(nn::batch_norm(n.b, "bn", n.conv("a", n.x), {.relu = true}));
  const Graph g = inference(fuse(n.b.graph()));
  check_order(g);
  CHECK(count<op::BatchNorm>(g) == 0);
  CHECK(only<op::BatchNormInference>(g).outputs.size() == 1);
}

TEST_CASE("gelu is not fused, has no FLOPs, and its gradient is computed from its input") {
  Net n;
  const ValueId x = n.conv("a", n.x);
  n.finish(n.b.gelu("g", x));
  const Graph g = differentiate(fuse(n.b.graph()));
  check_order(g);
  CHECK(name_of(only<op::Gelu>(g).op) == "gelu");
  CHECK(forward_flops(g, only<op::Gelu>(g)) == 0);
  const Node& back = only<op::GeluBackward>(g);
  CHECK(name_of(back.op) == "gelu_backward");
  REQUIRE(back.inputs.size() == 2);
  CHECK(back.inputs[1] == x);
  CHECK(g[back.outputs[0]].name == "d " + g[x].name);

  Net m;  // a sum after a batch norm whose output no other op reads
  const ValueId z = nn::batch_norm(m.b, "bn", m.conv("a", m.x));
  m.finish(m.b.gelu("g", z));
  const Graph h = differentiate(fuse(m.b.graph()));
  check_order(h);
  CHECK(count<op::BatchNorm>(h) == 1);
  CHECK_FALSE(std::get<op::BatchNorm>(only<op::BatchNorm>(h).op).relu);
  CHECK(only<op::GeluBackward>(h).inputs[1] == only<op::BatchNormInference>(h).outputs[0]);
}

TEST_CASE("differentiate: gradient contributions to the same value are added") {
  Net n;
  const ValueId a = n.conv("a", n.x);
  ValueId sum = n.conv("b1", a);
  for (int i = 2; i <= 4; ++i) sum = n.b.add("s" + std::to_string(i), sum, n.conv("b" + std::to_string(i), a));
  n.finish(sum);
  const Graph g = differentiate(n.b.graph());
  check_order(g);
  const int forward_adds = 3;
  CHECK(count<op::Add>(g) == forward_adds + 3);  // the gradient of a has four contributions, which need three additions
  CHECK(count<op::Conv2dBackwardData>(g) == 4);  // the images need no gradient
  CHECK(count<op::Conv2dBackwardWeights>(g) == 5);
  for (const Value& v : g.values)
    if (v.storage == Storage::parameter) {
      REQUIRE(v.gradient != no_value);
      CHECK(g[v.gradient].storage == Storage::gradient);
      CHECK(g[v.gradient].name == v.name);
      CHECK(g[v.gradient].shape == v.shape);
    }
}

TEST_CASE("differentiate: the backward op of a batch norm reads two gradient contributions without an add") {
  Net n;
  const ValueId y = nn::batch_norm(n.b, "bn", n.conv("a", n.x), {.relu = true});
  n.finish(n.b.add("sum", n.conv("b", y), n.conv("c", y)));
  const Graph g = differentiate(n.b.graph());
  check_order(g);
  CHECK(count<op::Add>(g) == 1);
  CHECK(std::get<op::BatchNormBackward>(only<op::BatchNormBackward>(g).op).second);
  Net m;
  const ValueId z = nn::batch_norm(m.b, "bn", m.conv("a", m.x), {.relu = true});
  m.finish(m.b.add("s2", m.b.add("s1", m.conv("b", z), m.conv("c", z)), z));
  const Graph h = differentiate(m.b.graph());
  check_order(h);
  CHECK(count<op::Add>(h) == 3);  // three contributions: one addition, and the batch norm reads two of them
  CHECK(std::get<op::BatchNormBackward>(only<op::BatchNormBackward>(h).op).second);
}

TEST_CASE("differentiate: unsupported graphs are refused") {
  Net none;
  CHECK_THROWS_AS((void)differentiate(none.b.graph()), UsageError);
  Net n;  // two convolutions share one weight
  const ValueId w = n.b.parameter("w", Shape{3, 3, 3, 3}, {});
  n.finish(n.b.conv2d("c2", n.b.conv2d("c1", n.x, w, {}), w, {}));
  CHECK_THROWS_WITH_AS((void)differentiate(n.b.graph()), doctest::Contains("'w' used twice"), UsageError);
  Net m;
  const auto custom = std::make_shared<CustomOp>();
  custom->name = "square";
  custom->shape = [](const CustomOp::Shapes& s) { return CustomOp::Shapes{s[0]}; };
  m.finish(m.b.custom("sq", custom, {m.conv("a", m.x)})[0]);
  CHECK_THROWS_WITH_AS((void)differentiate(m.b.graph()), doctest::Contains("a gradient for the custom op 'square'"),
                       UsageError);
  Net i;
  i.finish(nn::batch_norm(i.b, "bn", i.conv("a", i.x)));
  CHECK_THROWS_AS((void)differentiate(inference(i.b.graph())), UsageError);
  Net again;
  again.finish(again.conv("a", again.x));
  CHECK_THROWS_AS((void)differentiate(differentiate(again.b.graph())), UsageError);
}

TEST_CASE("differentiate: fixed parameters have no gradient, trainable parameters next to them have one") {
  Net n;
  const ValueId w = n.b.parameter("w", Shape{4, 3, 3, 3}, {}, true, false);
  const ValueId y = nn::batch_norm(n.b, "bn", n.b.conv2d("c", n.x, w, {}), {.fixed_gamma = true});
  const ValueId p = n.b.global_avg_pool("p", y);
  const ValueId fw = n.b.parameter("fw", Shape{10, 4}, {}, true, false), fb = n.b.parameter("fb", Shape{10}, {});
  n.b.softmax_cross_entropy(n.b.linear("fc", p, fw, fb));
  const Graph g = differentiate(n.b.graph());
  check_order(g);
  std::set<std::string> learned;
  for (const Value& v : g.values)
    if (v.storage == Storage::parameter && v.gradient != no_value) learned.insert(v.name);
  CHECK(learned == std::set<std::string>{"bn.bias", "fb"});
  CHECK(count<op::Conv2dBackwardData>(g) == 0);
  const ArenaLayout layout = parameter_layout(g, DType::f32);
  REQUIRE(layout.slices.size() == 5);
  CHECK(layout.slices[0].name == "fb");
  CHECK(layout.slices[1].name == "bn.bias");
  for (std::size_t i = 0; i < 5; ++i) CHECK(layout.slices[i].trainable == (i < 2));
}
