// SPDX-License-Identifier: MIT
// Recording, fusing, differentiating, and the shapes of the models.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <tutti/engine/plan.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/layers.hpp>

using namespace tutti;

namespace {

// The message starts with the layer's name in brackets.
template <class F>
void check_shape_error(const std::string& layer, F&& f) {
  try {
    f();
    FAIL_CHECK("no error for " << layer);
  } catch (const ShapeError& e) {
    const std::string message = e.what();
    CHECK_MESSAGE(message.find("[" + layer + "] expected ") == 0, message);
    CHECK(e.exit_code() == 2);
  }
}

struct Net {
  Builder b{3, 8, 8};
  ValueId x = b.normalize({0, 0, 0}, {1, 1, 1});

  ValueId conv(const std::string& name, ValueId in, std::int64_t out = 4, int stride = 1) {
    return nn::conv(b, name, in, {.out = out, .kernel = 3, .stride = stride});
  }
  void finish(ValueId y) { b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", y), 10, {})); }
};

template <class O>
int count(const Graph& g) {
  return static_cast<int>(
      std::count_if(g.nodes.begin(), g.nodes.end(), [](const Node& n) { return std::holds_alternative<O>(n.op); }));
}
template <class O>
const Node& only(const Graph& g) {
  REQUIRE(count<O>(g) == 1);
  return *std::find_if(g.nodes.begin(), g.nodes.end(), [](const Node& n) { return std::holds_alternative<O>(n.op); });
}

// Every node reads what an earlier one made (or what needs no making), and producers are right.
void check_order(const Graph& g) {
  std::set<ValueId> made;
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    for (ValueId v : g.nodes[i].inputs) {
      const Storage s = g[v].storage;
      const bool given = s == Storage::image || s == Storage::labels || s == Storage::parameter || s == Storage::state;
      CHECK_MESSAGE((given || made.count(v) == 1), g.nodes[i].name << " reads " << g[v].name << " too early");
    }
    for (ValueId v : g.nodes[i].outputs) {
      CHECK(g[v].producer == static_cast<NodeId>(i));
      CHECK_MESSAGE(made.insert(v).second, g[v].name << " is made twice");
    }
  }
}

std::size_t parameters(const Graph& g) {
  std::size_t n = 0;
  for (const Value& v : g.values)
    if (v.storage == Storage::parameter) n += static_cast<std::size_t>(v.shape.numel());
  return n;
}

template <class O>
std::size_t resnet_parameters(const O& options, std::int64_t size) {
  Builder b(3, size, size);
  const ValueId x = b.normalize({0, 0, 0}, {1, 1, 1});
  if constexpr (std::is_same_v<O, models::ResnetOptions>)
    models::resnet(b, x, options);
  else
    models::resnet_cifar(b, x, options);
  return parameters(b.graph());
}

}  // namespace

TEST_CASE("builder: shapes of what it records") {
  Net n;
  CHECK(n.b.shape(n.x) == Shape{1, 3, 8, 8});
  const ValueId c = n.conv("c", n.x, 5, 2);
  CHECK(n.b.shape(c) == Shape{1, 5, 4, 4});
  CHECK(n.b.shape(n.b.max_pool("p", c, {3, 3, 2, 1})) == Shape{1, 5, 2, 2});
  CHECK(n.b.shape(n.b.global_avg_pool("g", c)) == Shape{1, 5, 1, 1});
  CHECK(n.b.shape(nn::conv(n.b, "k", n.x, {.out = 2, .kernel = 5, .padding = 0})) == Shape{1, 2, 4, 4});
  n.finish(c);
  CHECK(n.b.shape(n.b.graph().logits) == Shape{1, 10});
  check_order(n.b.graph());
}

TEST_CASE("builder: every wrong shape is refused at the call, with the layer's name") {
  Net n;
  Builder& b = n.b;
  const ValueId c = n.conv("c", n.x), d = n.conv("d", n.x, 4, 2);
  const ValueId w = b.parameter("w", Shape{4, 3, 3, 3}, {}), v2 = b.parameter("v2", Shape{2}, {});
  const ValueId s2 = b.state("s2", Shape{2}, {}), v4 = b.parameter("v4", Shape{4}, {});
  check_shape_error("images", [] { Builder(3, 0, 8); });
  check_shape_error("normalize", [&] { b.normalize({0, 0}, {1, 1}); });
  check_shape_error("normalize", [&] { b.normalize({0, 0, 0}, {1, 1}); });
  check_shape_error("a", [&] { b.conv2d("a", c, w, {3, 3, 1, 1}); });     // 4 channels into weights for 3
  check_shape_error("a", [&] { b.conv2d("a", n.x, w, {5, 5, 1, 1}); });   // another kernel
  check_shape_error("a", [&] { b.conv2d("a", n.x, w, {3, 3, 0, 1}); });   // stride 0
  check_shape_error("a", [&] { b.conv2d("a", n.x, w, {3, 3, 1, -1}); });  // negative padding
  check_shape_error("a", [&] { b.conv2d("a", n.x, v4, {3, 3, 1, 1}); });  // weights of rank 1
  check_shape_error("a", [&] { nn::conv(b, "a", n.x, {.out = 0}); });
  check_shape_error("big", [&] { nn::conv(b, "big", n.x, {.out = 1, .kernel = 9, .padding = 0}); });
  check_shape_error("bn", [&] { b.batch_norm("bn", c, {v2, v2, s2, s2}, {}); });
  check_shape_error("bn2", [&] { nn::batch_norm(b, "bn2", c, {.residual = d}); });
  check_shape_error("add", [&] { b.add("add", c, d); });
  check_shape_error("bias", [&] { b.bias("bias", c, v2); });
  check_shape_error("pool", [&] { b.max_pool("pool", c, {16, 16, 1, 0}); });
  check_shape_error("pool", [&] { b.max_pool("pool", c, {3, 3, 1, 2}); });
  check_shape_error("fc", [&] { nn::linear(b, "fc", c, 10, {}); });  // not pooled
  check_shape_error("fc2", [&] { b.linear("fc2", b.global_avg_pool("g", c), w, v4); });
  check_shape_error("fc3", [&] { nn::linear(b, "fc3", c, 0, {}); });
  check_shape_error("loss", [&] { b.softmax_cross_entropy(c); });
  // What is no activation is not taken for one: the kernels would read past its end.
  check_shape_error("raw", [&] { nn::conv(b, "raw", b.images(), {.out = 4}); });
  check_shape_error("relu", [&] { b.relu("relu", b.images()); });
  check_shape_error("gelu", [&] { b.gelu("gelu", b.images()); });
  const ValueId image = b.parameter("image", Shape{1, 4, 8, 8}, {});
  check_shape_error("add", [&] { b.add("add", c, image); });
  check_shape_error("a", [&] { b.conv2d("a", n.x, b.images(), {8, 8, 1, 0}); });
}

TEST_CASE("builder: an op is recorded by its struct, as by the call that is named after it") {
  Net n;
  const ValueId c = n.conv("c", n.x);
  Builder other = n.b;
  CHECK(n.b.record("p", op::MaxPool{{3, 3, 2, 1}}, {c}) == other.max_pool("p", c, {3, 3, 2, 1}));
  CHECK(n.b.graph().nodes.back().outputs == other.graph().nodes.back().outputs);
  CHECK(n.b.graph().values.back().name == "p.which");
  CHECK_THROWS_WITH_AS(n.b.record("sum", op::Add{}, {c}), "[sum] expected 2 inputs or more, got 1.", UsageError);
}

TEST_CASE("ops: each has a name of its own") {
  std::set<std::string_view> names;
  for (const OpInfo& o : Ops::infos) CHECK_MESSAGE(names.insert(o.name).second, o.name);
  CHECK(name_of(op::Gelu{}) == "gelu");
  CHECK(reads_weights(op::Linear{}));
  CHECK_FALSE(reads_weights(op::LinearBackwardWeights{}));
}

TEST_CASE("builder: names are unique, one loss, sensible smoothing") {
  Net n;
  const ValueId c = n.conv("c", n.x);
  CHECK_THROWS_AS(n.conv("c", n.x), UsageError);
  CHECK_THROWS_AS(n.b.parameter("", Shape{1}, {}), UsageError);
  n.finish(c);
  const ValueId logits = n.b.graph().logits;
  CHECK_THROWS_AS(n.b.softmax_cross_entropy(logits), UsageError);
  Net m;
  const ValueId z = nn::linear(m.b, "fc", m.b.global_avg_pool("p", m.x), 3, {});
  CHECK_THROWS_AS(m.b.softmax_cross_entropy(z, 1.0F), UsageError);
  CHECK_THROWS_AS(m.b.softmax_cross_entropy(z, std::nanf("")), UsageError);
  m.b.softmax_cross_entropy(z);
  CHECK(std::get<op::SoftmaxCrossEntropy>(m.b.graph().nodes.back().op).top_k == 3);  // no more than there are classes
}

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

TEST_CASE("fuse: the summand made later than the batch norm is there when the fused node runs") {
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

TEST_CASE("fuse: not where somebody else reads what lies between") {
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
    Net n;  // the sum is read twice: batch norm and add join, the relu stays
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
    Net n;  // a relu before the sum keeps the sum apart
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

TEST_CASE("gelu: not fused, no FLOPs, and its gradient is made from its input") {
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

  Net m;  // behind a batch norm, whose output is not kept
  const ValueId z = nn::batch_norm(m.b, "bn", m.conv("a", m.x));
  m.finish(m.b.gelu("g", z));
  const Graph h = differentiate(fuse(m.b.graph()));
  check_order(h);
  CHECK(count<op::BatchNorm>(h) == 1);
  CHECK_FALSE(std::get<op::BatchNorm>(only<op::BatchNorm>(h).op).relu);
  CHECK(only<op::GeluBackward>(h).inputs[1] == only<op::BatchNormInference>(h).outputs[0]);
}

TEST_CASE("differentiate: contributions to one value are added") {
  Net n;
  const ValueId a = n.conv("a", n.x);
  ValueId sum = n.conv("b1", a);
  for (int i = 2; i <= 4; ++i) sum = n.b.add("s" + std::to_string(i), sum, n.conv("b" + std::to_string(i), a));
  n.finish(sum);
  const Graph g = differentiate(n.b.graph());
  check_order(g);
  const int forward_adds = 3;
  CHECK(count<op::Add>(g) == forward_adds + 3);  // four contributions to d a: three additions
  CHECK(count<op::Conv2dBackwardData>(g) == 4);  // none to the images
  CHECK(count<op::Conv2dBackwardWeights>(g) == 5);
  for (const Value& v : g.values)
    if (v.storage == Storage::parameter) {
      REQUIRE(v.gradient != no_value);
      CHECK(g[v.gradient].storage == Storage::gradient);
      CHECK(g[v.gradient].name == v.name);
      CHECK(g[v.gradient].shape == v.shape);
    }
}

TEST_CASE("differentiate: a batch norm reads two contributions itself") {
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
  CHECK(count<op::Add>(h) == 3);  // three contributions: one addition, two that the batch norm reads
  CHECK(std::get<op::BatchNormBackward>(only<op::BatchNormBackward>(h).op).second);
}

TEST_CASE("differentiate: what it refuses") {
  Net none;
  CHECK_THROWS_AS((void)differentiate(none.b.graph()), UsageError);
  Net n;  // one weight in two convolutions
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

TEST_CASE("differentiate: what does not learn has no gradient; what learns next to it has") {
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

TEST_CASE("custom op: shapes are the op's own, outputs have one row, all outputs must matter") {
  Net n;
  const auto bad = std::make_shared<CustomOp>();
  bad->name = "bad";
  bad->shape = [](const CustomOp::Shapes&) -> CustomOp::Shapes { fail<ShapeError>("bad", "something else", "this"); };
  CHECK_THROWS_AS(n.b.custom("c", bad, {n.x}), ShapeError);
  const auto flat = std::make_shared<CustomOp>();
  flat->shape = [](const CustomOp::Shapes&) { return CustomOp::Shapes{Shape{3}}; };
  check_shape_error("c", [&] { n.b.custom("c", flat, {n.x}); });
  const auto none = std::make_shared<CustomOp>();
  none->shape = [](const CustomOp::Shapes&) { return CustomOp::Shapes{}; };
  check_shape_error("c", [&] { n.b.custom("c", none, {n.x}); });
  const auto two = std::make_shared<CustomOp>();
  two->name = "two";
  two->shape = [](const CustomOp::Shapes& s) { return CustomOp::Shapes{s[0], s[0]}; };
  two->backward["host"] = [](auto, auto) {};
  const auto outs = n.b.custom("c", two, {n.conv("a", n.x)});
  CHECK(outs.size() == 2);
  n.finish(outs[0]);
  CHECK_THROWS_WITH_AS((void)differentiate(n.b.graph()), doctest::Contains("every output of 'two'"), UsageError);
}

TEST_CASE("models: parameter counts") {
  using models::ResnetCifarOptions;
  using models::ResnetOptions;
  CHECK(resnet_parameters(ResnetCifarOptions{.depth = 20}, 32) == 272474);
  CHECK(resnet_parameters(ResnetCifarOptions{.depth = 50, .preactivation = true}, 28) == 758624);
  CHECK(resnet_parameters(ResnetCifarOptions{.depth = 110, .preactivation = true}, 28) == 1730784);
  CHECK(resnet_parameters(ResnetOptions{.depth = 18}, 224) == 11689512);
  CHECK(resnet_parameters(ResnetOptions{.depth = 34}, 224) == 21797672);
  CHECK(resnet_parameters(ResnetOptions{.depth = 50}, 224) == 25557032);
  CHECK(resnet_parameters(ResnetOptions{.depth = 101}, 224) == 44549160);
  CHECK(resnet_parameters(ResnetOptions{.depth = 152}, 224) == 60192808);
}

TEST_CASE("models: depths that do not exist, and what an input batch norm learns") {
  CHECK_THROWS_AS(resnet_parameters(models::ResnetCifarOptions{.depth = 21}, 32), UsageError);
  CHECK_THROWS_AS(resnet_parameters(models::ResnetCifarOptions{.depth = 2}, 32), UsageError);
  CHECK_THROWS_AS(resnet_parameters(models::ResnetCifarOptions{.depth = 20, .classes = 1}, 32), UsageError);
  CHECK_THROWS_AS(resnet_parameters(models::ResnetOptions{.depth = 20}, 32), UsageError);
  Builder b(3, 28, 28);
  models::resnet_cifar(b, b.normalize({0, 0, 0}, {1, 1, 1}), {.depth = 8, .preactivation = true});
  const ArenaLayout l = parameter_layout(differentiate(fuse(b.graph())), DType::f32);
  REQUIRE(l.find("bn_data.weight") != nullptr);
  CHECK(!l.find("bn_data.weight")->trainable);
  CHECK(l.find("bn_data.bias")->trainable);
  CHECK(!l.find("bn1.weight")->decay);
  CHECK(!l.find("fc.bias")->decay);
  CHECK(l.find("fc.weight")->decay);
  CHECK(l.find("layer1.0.conv1.weight")->decay);
}

TEST_CASE("initializers: moments, fans, and the same numbers whatever else there is") {
  const Shape s{64, 32, 3, 3};
  std::vector<float> a(static_cast<std::size_t>(s.numel())), b(a.size());
  const auto deviation = [&](const Initializer& i) {
    initialize(a.data(), s, i, 1, "w");
    double sum = 0, squares = 0;
    for (float v : a) {
      sum += static_cast<double>(v);
      squares += static_cast<double>(v) * static_cast<double>(v);
    }
    const double n = static_cast<double>(a.size());
    CHECK(std::fabs(sum / n) < 0.05 * std::sqrt(squares / n) + 1e-12);
    return std::sqrt(squares / n);
  };
  CHECK(deviation({Init::he_normal, 1}) == doctest::Approx(std::sqrt(2.0 / 288)).epsilon(0.03));
  CHECK(deviation({Init::he_uniform, 1}) == doctest::Approx(std::sqrt(2.0 / 288)).epsilon(0.03));
  CHECK(deviation({Init::xavier_normal, 1}) == doctest::Approx(std::sqrt(2.0 / (288 + 576))).epsilon(0.03));
  CHECK(deviation({Init::xavier_uniform, 2}) == doctest::Approx(2 * std::sqrt(2.0 / (288 + 576))).epsilon(0.03));
  CHECK(deviation({Init::normal, 0.5}) == doctest::Approx(0.5).epsilon(0.03));
  CHECK(deviation({Init::uniform, 0.5}) == doctest::Approx(0.5 / std::sqrt(3.0)).epsilon(0.03));
  CHECK(deviation({Init::zeros}) == 0);
  initialize(a.data(), Shape{7}, {Init::ones, 1}, 1, "w");
  CHECK(a[6] == 1);
  initialize(a.data(), s, {Init::normal, 1}, 1, "w");
  initialize(b.data(), s, {Init::normal, 1}, 1, "w");
  CHECK(a == b);
  initialize(b.data(), s, {Init::normal, 1}, 1, "v");
  CHECK(a != b);
  initialize(b.data(), s, {Init::normal, 1}, 2, "w");
  CHECK(a != b);
}
