// SPDX-License-Identifier: MIT
// Tests the text output of a net and of its plan.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <tutti/engine/dump.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/nn/layers.hpp>

using namespace tutti;

namespace {

Graph net(const std::string& name) {
  Builder b(3, 8, 8);
  const ValueId x = b.relu("relu", b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}));
  b.softmax_cross_entropy(nn::linear(b, name, b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("a graph has a line for each node, which names its inputs and outputs") {
  const Graph g = net("fc");
  const std::string text = dump_text(g);
  CHECK(lines(text) == g.nodes.size());
  CHECK_MESSAGE(text.find("relu 'relu' (%") != std::string::npos, text);
  CHECK_MESSAGE(text.find(" 'fc' (%") != std::string::npos, text);
}

TEST_CASE("Graphviz draws every node once, and an arrow for every value that a node computes") {
  const Graph g = differentiate(net("a \"name\" \\"));
  const std::string text = dump_graphviz(g);
  CHECK(text.starts_with("digraph model {"));
  CHECK(text.ends_with("}\n"));
  std::size_t arrows = 0;
  for (const Node& n : g.nodes)
    arrows += static_cast<std::size_t>(
        std::count_if(n.inputs.begin(), n.inputs.end(), [&](ValueId v) { return g[v].producer >= 0; }));
  CHECK(lines(text) == 3 + g.nodes.size() + arrows + 1);
  CHECK_MESSAGE(text.find("a \\\"name\\\" \\\\\"") != std::string::npos, text);
  CHECK(text.find("style=dashed") != std::string::npos);
}

TEST_CASE("a plan has a line for each segment, with its steps") {
  ReferenceBackend backend;
  Executor e(backend, net("fc"));
  const Plan& plan = e.prepare(6, true);
  const std::string text = dump_text(e.graph(), plan);
  CHECK_MESSAGE(text.starts_with("plan for 6 rows in "), text);
  CHECK(lines(text) == 1 + plan.segments.size());
  for (const char* step : {" relu/", " fc/linear", " pool/global_avg_pool"})
    CHECK_MESSAGE(text.find(step) != std::string::npos, text);
}
