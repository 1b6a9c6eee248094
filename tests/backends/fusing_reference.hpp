// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/backends/cuda/ops/fuse_norms.hpp>
#include <tutti/engine/executor.hpp>

#include "backends/fused_reference.hpp"
#include "engine/comparison.hpp"
#include "engine/conformance.hpp"

// What the tests of fuse_norms() share: a backend with loops for the fused ops, a step of it, and checks of graphs.
namespace tutti::testing {

// Fuses its graphs, and runs them with the loops of ReferenceBackend.
class FusingReference : public FusedReference {
 public:
  explicit FusingReference(cuda::NormFusions o = {}) : options_(o) {}
  void rewrite(Graph& g, DType) override { fused = cuda::fuse_norms(g, options_); }
  cuda::FusedLayers fused;

 private:
  cuda::NormFusions options_;
};

// Returns the number of nodes with this op.
template <class O>
int count(const Graph& g) {
  int n = 0;
  for (const Node& node : g.nodes) n += op_cast<O>(node.op) != nullptr ? 1 : 0;
  return n;
}

// Checks that exactly one node computes each value, before any node reads it.
inline void check_order(const Graph& g) {
  std::vector<int> made(g.values.size(), 0);
  for (std::size_t v = 0; v < g.values.size(); ++v)
    if (g.values[v].storage != Storage::activation && g.values[v].storage != Storage::gradient) made[v] = 1;
  int early = 0, twice = 0, producers = 0;
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    for (ValueId v : g.nodes[i].inputs) early += made[static_cast<std::size_t>(v)] == 0 ? 1 : 0;
    for (ValueId v : g.nodes[i].outputs) {
      twice += made[static_cast<std::size_t>(v)]++ > 0 ? 1 : 0;
      producers += g[v].producer != static_cast<NodeId>(i) ? 1 : 0;
    }
  }
  CHECK(early == 0);
  CHECK(twice == 0);
  CHECK(producers == 0);
}

struct Trained {
  double loss = 0, evaluated = 0;
  std::vector<double> gradients, states;
};
// Returns the results of one step from random weights, and the loss of an evaluation after it.
template <class B>
Trained train(B& backend, const Graph& net, DType type, std::uint64_t seed) {
  Executor e(backend, net, {type});
  randomize(e, seed);
  const auto batch = random_batch(net, 5, seed);
  Trained r;
  r.loss = e.train(batch.view(), {1, 0.2}).loss;
  const auto numbers = [&](const void* data, const ArenaLayout& layout) {
    return fetch(backend,
                 TensorRef{const_cast<void*>(data), layout.dtype, Shape{static_cast<std::int64_t>(layout.count)}});
  };
  r.gradients = numbers(e.gradient_data(), e.parameters());
  r.states = numbers(e.state_data(), e.states());
  r.evaluated = e.evaluate(batch.view()).loss;
  return r;
}
}  // namespace tutti::testing
