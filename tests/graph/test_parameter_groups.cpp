// SPDX-License-Identifier: MIT
// Tests the patterns that choose parameters, and what they change in a graph.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <tutti/graph/parameter_groups.hpp>
#include <tutti/nn/layers.hpp>

using namespace tutti;

namespace {

Graph small_net() {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 4}, {.relu = true});
  x = nn::conv_bn(b, "layer1.0.conv2", "layer1.0.bn2", x, {.out = 4}, {.relu = true});
  x = b.global_avg_pool("pool", x);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

std::vector<std::string> names(const Graph& g, const char* patterns) {
  std::vector<std::string> list;
  for (const ValueId v : find_parameters(g, patterns, "test")) list.push_back(g[v].name);
  return list;
}

std::string message(const char* patterns, bool freezes = false) {
  Graph g = small_net();
  try {
    if (freezes)
      (void)freeze(g, patterns, "--freeze");
    else
      (void)find_parameters(g, patterns, "--freeze");
  } catch (const UsageError& e) {
    return e.what();
  }
  return "no error";
}

const Value& value(const Graph& g, const std::string& name) {
  for (const Value& v : g.values)
    if (v.name == name) return v;
  FAIL(name);
  return g.values.front();
}

}  // namespace

TEST_CASE("a pattern matches a name, or a layer to which the parameter belongs") {
  CHECK(matches_parameter("layer1", "layer1.0.conv2.weight"));
  CHECK(matches_parameter("layer1.0.conv2.weight", "layer1.0.conv2.weight"));
  CHECK(matches_parameter("*.bn?.weight", "layer1.0.bn2.weight"));
  CHECK(matches_parameter("layer*.conv?", "layer1.0.conv2.weight"));
  CHECK(matches_parameter("*", "fc.bias"));
  CHECK_FALSE(matches_parameter("layer", "layer1.0.conv2.weight"));
  CHECK_FALSE(matches_parameter("conv2", "layer1.0.conv2.weight"));
  CHECK_FALSE(matches_parameter("bn?", "bn12.weight"));
  CHECK_FALSE(matches_parameter("", "fc.bias"));
}

TEST_CASE("patterns are a list, and one after an exclamation mark takes parameters out") {
  const Graph g = small_net();
  CHECK(names(g, "fc,conv1") == std::vector<std::string>{"conv1.weight", "fc.weight", "fc.bias"});
  CHECK(names(g, "*,!fc,!layer1") == std::vector<std::string>{"conv1.weight", "bn1.weight", "bn1.bias"});
}

TEST_CASE("a pattern that matches nothing is an error with the nearest names") {
  CHECK(message("layer7") ==
        "[--freeze] expected a pattern of parameters' names, such as layer1 or *.bn?.weight, got 'layer7', which "
        "matches none of 8. hint: the nearest are layer1, layer1.0, conv1.");
  CHECK(message("*.conv1.weigth").find("are conv1.weight,") != std::string::npos);
  CHECK(message("*", true).find("a parameter or more that learns") != std::string::npos);
  CHECK(message("!fc") ==
        "[--freeze] expected patterns that choose a parameter or more, got '!fc', which chooses none. hint: a pattern "
        "after ! takes out what an earlier one has chosen: *,!fc is all but fc.");
  CHECK(message("fc,!fc").find("which chooses none") != std::string::npos);
}

TEST_CASE("frozen parameters need no gradient, and neither do the values that depend on no others") {
  Graph g = small_net();
  CHECK(freeze(g, "conv1,bn1,layer1.0.conv2") == 4);
  CHECK_FALSE(value(g, "conv1.weight").trainable);
  CHECK_FALSE(value(g, "layer1.0.conv2").requires_grad);
  CHECK(value(g, "layer1.0.bn2.weight").trainable);
  CHECK(value(g, "layer1.0.bn2").requires_grad);
  CHECK(value(g, "pool").requires_grad);
}

TEST_CASE("factors multiply the rate") {
  Graph g = small_net();
  CHECK(scale_rate(g, "fc", 10) == 2);
  CHECK(scale_rate(g, "fc.bias", 0.5) == 1);
  CHECK(value(g, "fc.weight").lr_scale == 10);
  CHECK(value(g, "fc.bias").lr_scale == 5);
  CHECK(value(g, "conv1.weight").lr_scale == 1);
  CHECK_THROWS_AS((void)scale_rate(g, "fc", 0), UsageError);
}
