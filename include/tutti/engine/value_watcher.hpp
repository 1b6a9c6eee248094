// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include <tutti/graph/graph.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/tensor/view.hpp>

namespace tutti {

// Is told what each op of a run has come to, as soon as it is done and before the next one begins: see
// engine/value_trace.hpp.
class ValueWatcher {
 public:
  virtual ~ValueWatcher() = default;
  // Operands in the order of the node's, in this memory; without data where a value lies nowhere. What it throws ends
  // the run.
  virtual void ran(Memory& memory, const Graph& g, const Node& n, const std::vector<TensorRef>& in,
                   const std::vector<TensorRef>& out) = 0;
};

}  // namespace tutti
