// SPDX-License-Identifier: MIT
// Tests dropout and stochastic depth: the documented random numbers, their statistics, and evaluation.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/graph/weighted_graph.hpp>
#include <tutti/interchange/net_to_json.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/layers.hpp>

#include "engine/comparison.hpp"

using namespace tutti;

namespace {

constexpr std::int64_t channels = 4, side = 5, row = channels * side * side;

struct Net {
  Graph graph;
  std::vector<ValueId> drops;  // results of the dropouts; the inputs are 1
  ValueId input = no_value;
};

// A net whose dropouts read ones. rows: of images.
Net net_of(double rate, bool rows) {
  Builder b(channels, side, side);
  Net net;
  // (x - 0) * 0 + 1
  ValueId x = b.normalize(std::vector<float>(channels), std::vector<float>(channels));
  x = net.input = b.bias("ones", x, b.parameter("ones", Shape{channels}, {Init::ones, 1}));
  for (const char* name : {"a", "b"})
    net.drops.push_back(rows ? nn::drop_path(b, name, x, rate) : nn::dropout(b, name, x, rate));
  const ValueId sum = b.add("sum", net.drops[0], net.drops[1]);
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", sum), 3, {Init::he_uniform, 1}));
  net.graph = std::move(b).take();
  return net;
}

// Returns the values of the dropouts in a step with this key.
std::vector<std::vector<double>> run(const Net& net, const BatchKey& key, std::int64_t rows) {
  CpuBackend backend({3});
  Executor e(backend, net.graph, {DType::f32, true});
  const Slice& ones = *e.parameters().find("ones");
  for (std::size_t i = 0; i < ones.count; ++i) static_cast<float*>(e.parameter_data())[ones.offset + i] = 1;
  e.parameters_changed();
  const testing::Batch batch = testing::random_batch(net.graph, rows, 1);
  (void)e.train(batch.view(), {1, 1, key});
  std::vector<std::vector<double>> all;
  for (const ValueId v : net.drops) all.push_back(testing::to_doubles(e.value(v)));
  return all;
}

}  // namespace

TEST_CASE("the numbers of dropouts are those that the op documents") {
  const BatchKey key{7, 12, 3, 5};
  constexpr std::int64_t rows = 9;
  constexpr float rate = 0.3F;
  for (const bool images : {false, true}) {
    const auto got = run(net_of(rate, images), key, rows);
    Rng keys = batch_rng(key.seed, Purpose::dropout, key.step, key.logical_rank);
    for (const auto& values : got) {
      const std::uint64_t layer = keys.next64();
      int wrong = 0;
      for (std::int64_t n = 0; n < rows; ++n) {
        Rng numbers(layer, Purpose::dropout, 0, static_cast<std::uint64_t>(key.first_row + n));
        float u = numbers.uniform();
        for (std::int64_t i = 0; i < row; ++i) {
          if (i > 0 && !images) u = numbers.uniform();
          const double want = u < rate ? 0 : static_cast<double>(1 / (1 - rate));
          if (std::fabs(values[static_cast<std::size_t>(n * row + i)] - want) > 1e-6) ++wrong;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("dropouts drop the share of their rate, and layers, steps, seeds and logical ranks differ") {
  constexpr std::int64_t rows = 400;
  const Net net = net_of(0.2, false);
  const auto share = [](const std::vector<double>& v) {
    double zeros = 0;
    for (const double x : v) zeros += x == 0 ? 1 : 0;
    return zeros / static_cast<double>(v.size());
  };
  std::vector<std::vector<double>> all;
  for (const BatchKey& key : {BatchKey{1, 0, 0}, BatchKey{2, 0, 0}, BatchKey{1, 1, 0}, BatchKey{1, 0, 1}})
    for (auto& values : run(net, key, rows)) all.push_back(std::move(values));
  const double deviation = std::sqrt(0.2 * 0.8 / static_cast<double>(rows * row));
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(std::fabs(share(all[i]) - 0.2) < 4 * deviation);
    // Two masks both drop an element with the probability 0.04.
    for (std::size_t j = 0; j < i; ++j) {
      double both = 0;
      for (std::size_t k = 0; k < all[i].size(); ++k) both += all[i][k] == 0 && all[j][k] == 0 ? 1 : 0;
      CHECK(std::fabs(both / static_cast<double>(rows * row) - 0.04) < 4 * std::sqrt(0.04 * 0.96 / (rows * row)));
    }
  }
  // Rows of one batch differ too.
  double both = 0;
  for (std::size_t k = row; k < all[0].size(); ++k) both += all[0][k] == 0 && all[0][k - row] == 0 ? 1 : 0;
  CHECK(std::fabs(both / static_cast<double>(rows * row) - 0.04) < 4 * std::sqrt(0.04 * 0.96 / (rows * row)));
  // Images: 4 deviations of 800 rows.
  const auto images = run(net_of(0.2, true), {3, 1, 2}, 800);
  for (const auto& values : images) CHECK(std::fabs(share(values) - 0.2) < 4 * std::sqrt(0.2 * 0.8 / 800));
}

TEST_CASE("evaluations and exported nets do not drop") {
  const Net net = net_of(0.5, false);
  CpuBackend backend({2});
  Executor e(backend, net.graph, {DType::f32, true});
  testing::randomize(e, 3);
  const testing::Batch batch = testing::random_batch(net.graph, 6, 1);
  (void)e.evaluate(batch.view());
  const auto x = testing::to_doubles(e.value(net.input));
  for (const ValueId v : net.drops) CHECK(testing::to_doubles(e.value(v)) == x);

  const Graph g = inference_graph(net.graph);
  for (const Node& n : g.nodes) CHECK(!std::holds_alternative<op::Dropout>(n.op));
  CHECK(g.nodes.size() == net.graph.nodes.size() - 3);  // two dropouts and the loss
  const auto json = interchange::net_to_json(net.graph);
  REQUIRE(json.has_value());
  CHECK(io::write_json(*json).find("dropout") == std::string::npos);
  CHECK(net_of(0, true).graph.nodes.size() == net.graph.nodes.size() - 2);
}

TEST_CASE("rates that are not probabilities are errors") {
  Builder b(3, 4, 4);
  const ValueId x = b.normalize({0, 0, 0}, {1, 1, 1});
  for (const double rate : {-0.1, 1.0, std::nan("")}) {
    CHECK_THROWS_WITH_AS(nn::dropout(b, "drop", x, rate), doctest::Contains("[drop] expected a rate"), UsageError);
    CHECK_THROWS_WITH_AS(b.record("d", op::Dropout{static_cast<float>(rate)}, {x}), doctest::Contains("a rate"),
                         UsageError);
  }
}
