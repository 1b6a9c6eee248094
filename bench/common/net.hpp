// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti::bench {

struct BackendInfo {
  std::string name, description;
};

// The backends of this build, the fastest first; cuda where there is a GPU.
[[nodiscard]] std::vector<BackendInfo> backends();

// A model on a backend with one batch of random images. A step is a training step without the update, by the Executor:
// so an op runs in the chunks, shards and threads of training, and finds in the caches what it finds there.
class Net {
 public:
  Net() = default;
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;
  virtual ~Net() = default;

  virtual void step() = 0;
  // Seconds that a node took in the last step: the CPU time of its calls, divided among the threads that the plan lets
  // share them. Neither waiting for other threads nor what other programs take is in it; nor is the packing of weights,
  // which happens once an update.
  [[nodiscard]] virtual double seconds(NodeId node) const = 0;
  [[nodiscard]] virtual const Graph& graph() const = 0;  // with its gradients
  [[nodiscard]] virtual int threads() const = 0;
  // Whether the processor's limits are those of the net.
  [[nodiscard]] virtual bool on_processor() const { return true; }
};

// `model` as a Builder records it. `threads` 0: one per core; the reference backend has one.
// convolution: as BackendOptions has it. Throws UsageError for a
// backend that is not built.
[[nodiscard]] std::unique_ptr<Net> make_net(const std::string& backend, int threads, const std::string& convolution,
                                            const Graph& model, DType precision, std::int64_t rows);

// The node of layer `name` that is an O; throws UsageError if there is none.
template <class O>
[[nodiscard]] NodeId find_node(const Graph& g, const std::string& name) {
  for (std::size_t i = 0; i < g.nodes.size(); ++i)
    if (g.nodes[i].name == name && std::holds_alternative<O>(g.nodes[i].op)) return static_cast<NodeId>(i);
  fail<UsageError>("bench", std::string(name_of(Op(O{}))) + " in layer '" + name + "'", "a graph without it");
}

}  // namespace tutti::bench
