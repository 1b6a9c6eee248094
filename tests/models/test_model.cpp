// SPDX-License-Identifier: MIT
// Tests Model: a net that reads extents, normalisation and classes from a schema, and names its layers itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/graph/summary.hpp>
#include <tutti/interchange/net_to_json.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/models/model.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/layers.hpp>

using namespace tutti;

namespace {

Schema pets() {
  Schema s;
  s.name = "pets";
  s.channels = 3;
  s.height = 16;
  s.width = 12;
  s.classes = 3;
  s.mean = {120, 110, 100};
  s.stddev = {64, 50, 30};
  return s;
}

std::vector<std::string> parameters(const Graph& g) {
  std::vector<std::string> names;
  for (const Value& v : g.values)
    if (v.storage == Storage::parameter) names.push_back(v.name);
  return names;
}

std::string text(const Graph& g) { return io::write_json(*interchange::net_to_json(g)); }

}  // namespace

TEST_CASE("a model takes extents, normalisation and classes from the schema") {
  Model net(pets());
  CHECK(net.shape(net.images()) == Shape{1, 3, 16, 12});
  CHECK(net.classes() == 3);
  const ValueId logits = net.classifier(net.conv_bn(net.images(), {.out = 8, .stride = 2}));
  CHECK(net.shape(logits) == Shape{1, 3});

  Builder by_hand(3, 16, 12);
  ValueId x = by_hand.normalize({120, 110, 100}, {1 / 64.F, 1 / 50.F, 1 / 30.F});
  x = nn::conv_bn(by_hand, "conv1", "bn1", x, {.out = 8, .stride = 2}, {.relu = true});
  x = by_hand.global_avg_pool("pool1", x);
  by_hand.softmax_cross_entropy(nn::linear(by_hand, "fc", x, 3, {Init::xavier_normal, 1}));
  CHECK(text(net.graph()) == text(by_hand.graph()));
}

TEST_CASE("layers are named by number unless the options give a name") {
  Model net(pets());
  auto x = net.conv_bn(net.images(), {.out = 4});
  x = net.conv_bn(x, {.out = 4, .name = "stem"});
  x = net.conv_bn(x, {.out = 4});
  x = net.max_pool(net.relu(net.add(x, x)));
  x = net.conv(x, {.out = 4});
  x = net.global_avg_pool(net.gelu(net.batch_norm(x)));
  x = net.linear(x, {.out = 5});
  net.classifier(x, {.name = "head"});
  CHECK(parameters(net.graph()) == std::vector<std::string>{"conv1.weight", "bn1.weight", "bn1.bias", "stem.weight",
                                                            "stem.bn.weight", "stem.bn.bias", "conv3.weight",
                                                            "bn3.weight", "bn3.bias", "conv4.weight", "conv4.bias",
                                                            "bn4.weight", "bn4.bias", "linear1.weight", "linear1.bias",
                                                            "head.weight", "head.bias"});
}

TEST_CASE("a residual block projects its input only if the shape changes") {
  Model net(pets());
  auto x = net.conv_bn(net.images(), {.out = 8});
  x = net.residual(x, {.out = 8});
  CHECK(net.shape(x) == Shape{1, 8, 16, 12});
  x = net.residual(x, {.out = 16, .stride = 2});
  CHECK(net.shape(x) == Shape{1, 16, 8, 6});
  net.classifier(x);
  const std::vector<std::string> names = parameters(net.graph());
  const auto has = [&](const std::string& name) { return std::count(names.begin(), names.end(), name) == 1; };
  CHECK(has("layer1.conv1.weight"));
  CHECK_FALSE(has("layer1.downsample.0.weight"));
  CHECK(has("layer2.conv2.weight"));
  CHECK(has("layer2.downsample.0.weight"));
  CHECK(has("layer2.downsample.1.bias"));
}

TEST_CASE("functions of nn and models accept a Model and its values") {
  Model net(pets());
  models::resnet_cifar(net, net.images(), {.depth = 8, .classes = net.classes()});
  CHECK(net.shape(net.graph().logits) == Shape{1, 3});
  CHECK(nn::conv(net, "more", net.images(), {.out = 2, .init = Init::he_uniform}) != no_value);
}

TEST_CASE("an initializer without a gain has gain 1") {
  const Initializer word = Init::xavier_normal, in_full{Init::xavier_normal, 1};
  CHECK(word.kind == in_full.kind);
  CHECK(word.scale == in_full.scale);
}

TEST_CASE("an invalid schema or layer is refused") {
  Schema none = pets();
  none.classes = 0;
  CHECK_THROWS_WITH_AS(Model{none}, "[schema of pets] expected 1 class or more, got 0.", UsageError);
  Model net(pets());
  CHECK_THROWS_AS(net.conv_bn(net.images(), {}), ShapeError);
  net.classifier(net.images());
  CHECK_THROWS_WITH_AS(net.classifier(net.images(), {.name = "other"}), "[loss] expected one loss, got a second loss.",
                       UsageError);
}

TEST_CASE("a shape prints as text") {
  std::ostringstream out;
  out << Shape{1, 3, 16, 12};
  CHECK(out.str() == "[1, 3, 16, 12]");
}
