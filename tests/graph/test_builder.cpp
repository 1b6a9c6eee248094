// SPDX-License-Identifier: MIT
// Tests how a graph is recorded, the shapes of the models, and their initial weights.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include <tutti/engine/plan/plan.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/activations.hpp>
#include <tutti/nn/channels.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/nn/pooling.hpp>

#include "graph_checks.hpp"

using namespace tutti;
using namespace tutti::testing;

TEST_CASE("builder: recorded ops have the right shapes") {
  Net n;
  CHECK(n.b.shape(n.x) == Shape{1, 3, 8, 8});
  const ValueId c = n.conv("c", n.x, 5, 2);
  CHECK(n.b.shape(c) == Shape{1, 5, 4, 4});
  CHECK(n.b.shape(n.b.max_pool("p", c, {3, 3, 2, 1})) == Shape{1, 5, 2, 2});
  CHECK(n.b.shape(n.b.global_avg_pool("g", c)) == Shape{1, 5, 1, 1});
  CHECK(n.b.shape(nn::conv(n.b, "k", n.x, {.out = 2, .kernel = 5, .padding = 0})) == Shape{1, 2, 4, 4});
  const ValueId depthwise = nn::conv(n.b, "depthwise", c, {.out = 10, .stride = 2, .groups = 5});
  CHECK(n.b.shape(depthwise) == Shape{1, 10, 2, 2});
  CHECK(n.b.shape(n.b.graph().nodes.back().inputs[1]) == Shape{10, 1, 3, 3});
  // Each of 10 outputs is 9 multiplications and additions on 2x2 pixels.
  CHECK(forward_flops(n.b.graph(), n.b.graph().nodes.back()) == 2 * 10 * 9 * 4);
  CHECK(n.b.shape(nn::avg_pool(n.b, "ap", c, {2, 2, 2, 0})) == Shape{1, 5, 2, 2});
  const auto over_edge = [&](std::int64_t pixels, op::Window w) {
    Builder of(3, pixels, pixels);
    return of.shape(nn::avg_pool(of, "a", of.normalize({0, 0, 0}, {1, 1, 1}), w, false, true))[2];
  };
  CHECK(over_edge(7, {2, 2, 2, 0}) == 4);
  CHECK(over_edge(8, {2, 2, 2, 0}) == 4);
  CHECK(over_edge(1, {2, 2, 2, 0}) == 1);
  CHECK(over_edge(7, {3, 3, 2, 1}) == 4);
  CHECK(over_edge(6, {2, 2, 3, 1}) == 3);
  CHECK(over_edge(4, {2, 2, 3, 1}) == 2);  // a third window would begin in the padding
  CHECK(n.b.shape(nn::concat(n.b, "cat", {c, c, nn::silu(n.b, "s", c)})) == Shape{1, 15, 4, 4});
  CHECK(n.b.shape(nn::squeeze_excitation(n.b, "se", c, 2)) == Shape{1, 5, 4, 4});
  const ValueId scaled = nn::layer_scale(n.b, "ls", nn::layer_norm(n.b, "ln", c));
  CHECK(n.b.shape(scaled) == Shape{1, 5, 4, 4});
  CHECK(n.b.shape(n.b.graph().nodes.back().inputs[1]) == Shape{5, 1, 1});
  CHECK(n.b.shape(nn::dropout(n.b, "drop", scaled)) == Shape{1, 5, 4, 4});
  CHECK(name_of(n.b.graph().nodes.back().op) == "dropout");
  nn::drop_path(n.b, "path", scaled, 0.5);
  CHECK(name_of(n.b.graph().nodes.back().op) == "drop_path");
  CHECK(n.b.shape(nn::blur(n.b, "blur", c, 2)) == Shape{1, 5, 2, 2});
  n.finish(c);
  CHECK(n.b.shape(n.b.graph().logits) == Shape{1, 10});
  check_order(n.b.graph());
}

TEST_CASE("builder: a call with a wrong shape fails, and the error names the layer") {
  Net n;
  Builder& b = n.b;
  const ValueId c = n.conv("c", n.x), d = n.conv("d", n.x, 4, 2);
  const ValueId w = b.parameter("w", Shape{4, 3, 3, 3}, {}), v2 = b.parameter("v2", Shape{2}, {});
  const ValueId s2 = b.state("s2", Shape{2}, {}), v4 = b.parameter("v4", Shape{4}, {});
  check_shape_error("images", [] { Builder(3, 0, 8); });
  check_shape_error("normalize", [&] { b.normalize({0, 0}, {1, 1}); });
  check_shape_error("normalize", [&] { b.normalize({0, 0, 0}, {1, 1}); });
  check_shape_error("a", [&] { b.conv2d("a", c, w, {3, 3, 1, 1}); });     // an input of 4 channels, weights for 3
  check_shape_error("a", [&] { b.conv2d("a", n.x, w, {5, 5, 1, 1}); });   // the kernel's size differs from the weights'
  check_shape_error("a", [&] { b.conv2d("a", n.x, w, {3, 3, 0, 1}); });   // stride 0
  check_shape_error("a", [&] { b.conv2d("a", n.x, w, {3, 3, 1, -1}); });  // negative padding
  check_shape_error("a", [&] { b.conv2d("a", n.x, v4, {3, 3, 1, 1}); });  // weights of rank 1
  check_shape_error("a", [&] { nn::conv(b, "a", n.x, {.out = 0}); });
  check_shape_error("big", [&] { nn::conv(b, "big", n.x, {.out = 1, .kernel = 9, .padding = 0}); });
  check_shape_error("bn", [&] { b.batch_norm("bn", c, {v2, v2, s2, s2}, {}); });
  check_shape_error("bn2", [&] { nn::batch_norm(b, "bn2", c, {.residual = d}); });
  check_shape_error("add", [&] { b.add("add", c, d); });
  check_shape_error("a", [&] { b.conv2d("a", n.x, w, {3, 3, 1, 1}, 0); });
  check_shape_error("a", [&] { b.conv2d("a", n.x, w, {3, 3, 1, 1}, 2); });  // 2 groups of 3 channels
  check_shape_error("a", [&] { b.conv2d("a", n.x, w, {3, 3, 1, 1}, 3); });  // weights for 3 channels a group
  check_shape_error("g4", [&] { nn::conv(b, "g4", n.x, {.out = 4, .groups = 4}); });
  check_shape_error("g3", [&] { nn::conv(b, "g3", n.x, {.out = 4, .groups = 3}); });  // 4 outputs in 3 groups
  check_shape_error("bias", [&] { b.bias("bias", c, v2); });
  check_shape_error("pool", [&] { b.max_pool("pool", c, {16, 16, 1, 0}); });
  check_shape_error("pool", [&] { b.max_pool("pool", c, {3, 3, 1, 2}); });
  check_shape_error("fc", [&] { nn::linear(b, "fc", c, 10, {}); });  // the input is not pooled
  check_shape_error("fc2", [&] { b.linear("fc2", b.global_avg_pool("g", c), w, v4); });
  check_shape_error("fc3", [&] { nn::linear(b, "fc3", c, 0, {}); });
  check_shape_error("loss", [&] { b.softmax_cross_entropy(c); });
  // Layers refuse values that are not activations, because kernels would read beyond their end.
  check_shape_error("raw", [&] { nn::conv(b, "raw", b.images(), {.out = 4}); });
  check_shape_error("relu", [&] { b.relu("relu", b.images()); });
  check_shape_error("gelu", [&] { b.gelu("gelu", b.images()); });
  check_shape_error("silu", [&] { nn::silu(b, "silu", b.images()); });
  check_shape_error("avg", [&] { nn::avg_pool(b, "avg", c, {16, 16, 1, 0}); });
  check_shape_error("avg", [&] { nn::avg_pool(b, "avg", c, {2, 2, 1, 2}); });
  check_shape_error("avg", [&] { nn::avg_pool(b, "avg", c, {2, 2, 2, 0}, true, true); });
  check_shape_error("mul", [&] { nn::multiply(b, "mul", c, c); });
  check_shape_error("mul", [&] { nn::multiply(b, "mul", c, b.global_avg_pool("p1", n.x)); });
  check_shape_error("cat", [&] { nn::concat(b, "cat", {}); });
  check_shape_error("cat", [&] { nn::concat(b, "cat", {c, d}); });
  check_shape_error("cat", [&] { nn::concat(b, "cat", std::vector<ValueId>(17, c)); });
  check_shape_error("ln", [&] { b.record("ln", op::LayerNorm{}, {c, v2, v4}); });
  check_shape_error("ls", [&] { nn::multiply(b, "ls", c, v2); });
  check_shape_error("drop", [&] { nn::dropout(b, "drop", b.images()); });
  CHECK_THROWS_AS(b.record("ln", op::LayerNorm{0}, {c, v4, v4}), UsageError);
  const ValueId image = b.parameter("image", Shape{1, 4, 8, 8}, {});
  check_shape_error("add", [&] { b.add("add", c, image); });
  check_shape_error("a", [&] { b.conv2d("a", n.x, b.images(), {8, 8, 1, 0}); });
}

TEST_CASE("a strided convolution of 16 channels or more reads the blurred input, and the blur is not trained") {
  Net n;
  const ValueId few = nn::conv(n.b, "few", n.x, {.out = 16, .stride = 2, .blur = true});
  CHECK(count<op::Conv2d>(n.b.graph()) == 1);
  const ValueId same = nn::conv(n.b, "same", few, {.out = 16, .blur = true});
  CHECK(count<op::Conv2d>(n.b.graph()) == 2);
  n.finish(nn::conv(n.b, "down", same, {.out = 24, .stride = 2, .blur = true}));
  const Graph g = differentiate(fuse(n.b.graph()));
  CHECK(count<op::Conv2d>(g) == 4);
  CHECK(count<op::Conv2dBackwardWeights>(g) == 3);
  double sum = 0;
  for (const Value& v : g.values)
    if (v.name == "down.blur.weight") {
      CHECK(v.shape == Shape{16, 1, 3, 3});
      CHECK_FALSE(v.trainable);
      for (const float w : *v.init.given) sum += static_cast<double>(w);
    }
  CHECK(sum == 16);
}

TEST_CASE("builder: an op can be added as a struct or by the method with the op's name") {
  Net n;
  const ValueId c = n.conv("c", n.x);
  Builder other = n.b;
  CHECK(n.b.record("p", op::MaxPool{{3, 3, 2, 1}}, {c}) == other.max_pool("p", c, {3, 3, 2, 1}));
  CHECK(n.b.graph().nodes.back().outputs == other.graph().nodes.back().outputs);
  CHECK(n.b.graph().values.back().name == "p.which");
  CHECK_THROWS_WITH_AS(n.b.record("sum", op::Add{}, {c}), "[sum] expected 2 inputs or more, got 1.", UsageError);
}

TEST_CASE("ops: every op has a unique name") {
  std::set<std::string_view> names;
  for (const OpInfo& o : Ops::infos) CHECK_MESSAGE(names.insert(o.name).second, o.name);
  CHECK(name_of(op::Gelu{}) == "gelu");
  CHECK(name_of(op::ActivationBackward{op::ActivationKind::hard_swish}) == "hard_swish_backward");
  CHECK(name_of(op::GlobalAvgPool{}) == "global_avg_pool");
  CHECK(name_of(op::AvgPool{{{2, 2, 2, 0}}}) == "avg_pool");
  op::SoftmaxCrossEntropy loss;
  loss.binary = true;
  CHECK(name_of(loss) == "binary_cross_entropy");
  CHECK(reads_weights(op::Linear{}));
  CHECK_FALSE(reads_weights(op::LinearBackwardWeights{}));
}

TEST_CASE("builder: names must be unique, a net has one loss, and label smoothing is limited") {
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
  // top_k is at most the number of classes.
  CHECK(std::get<op::SoftmaxCrossEntropy>(m.b.graph().nodes.back().op).top_k == 3);
}

TEST_CASE("custom op: the op computes the output shapes, outputs have one row, all outputs must be used") {
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

TEST_CASE("models have the published parameter counts") {
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

TEST_CASE("models: unknown depths are refused, and an input batch norm has the right parameters") {
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

TEST_CASE("initializers have the right moments and fans, and give the same numbers in any net") {
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
