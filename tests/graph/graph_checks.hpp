// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include <tutti/graph/builder.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/layers.hpp>

namespace tutti::testing {

// Checks that the message starts with the layer's name in brackets.
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
inline const Node& only(const Graph& g) {
  REQUIRE(count<O>(g) == 1);
  return *std::find_if(g.nodes.begin(), g.nodes.end(), [](const Node& n) { return std::holds_alternative<O>(n.op); });
}

// Checks that every node reads only values that an earlier node computed, or that need no computation. Checks that the
// producer of each value is right.
inline void check_order(const Graph& g) {
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

inline std::size_t parameters(const Graph& g) {
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

}  // namespace tutti::testing
