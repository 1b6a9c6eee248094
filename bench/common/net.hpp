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
  bool bf16 = true;  // whether it computes in bf16 on this processor
};

// Returns the backends of this build, the fastest first. They include cuda if there is a GPU.
[[nodiscard]] std::vector<BackendInfo> backends();

// A model on a backend with one batch of random images. A step is a training step without the update, and the Executor
// runs it. So an op runs in the chunks, shards and threads of training, with the same data in the caches.
class Net {
 public:
  Net() = default;
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;
  virtual ~Net() = default;

  virtual void step() = 0;
  // Returns the seconds of a node in the last step: the CPU time of its calls, divided by the number of threads that
  // share them in the plan. This excludes waits for other threads, the time of other programs, and the packing of
  // weights, which happens once per update.
  [[nodiscard]] virtual double seconds(NodeId node) const = 0;
  [[nodiscard]] virtual const Graph& graph() const = 0;  // includes the gradients
  [[nodiscard]] virtual int threads() const = 0;
  // Returns true if the limits of the processor apply to the net.
  [[nodiscard]] virtual bool on_processor() const { return true; }
};

// Builds a net from a model that a Builder has recorded. threads: 0 means one for each core; the reference backend uses
// one. convolution: as in BackendOptions. Throws UsageError if this build does not have the backend.
[[nodiscard]] std::unique_ptr<Net> make_net(const std::string& backend, int threads, const std::string& convolution,
                                            const Graph& model, DType precision, std::int64_t rows);

// Returns the node of layer `name` with an op of type O. Throws UsageError if there is no such node.
template <class O>
[[nodiscard]] NodeId find_node(const Graph& g, const std::string& name) {
  for (std::size_t i = 0; i < g.nodes.size(); ++i)
    if (g.nodes[i].name == name && std::holds_alternative<O>(g.nodes[i].op)) return static_cast<NodeId>(i);
  fail<UsageError>("bench", std::string(name_of(Op(O{}))) + " in layer '" + name + "'", "a graph without this op");
}

}  // namespace tutti::bench
