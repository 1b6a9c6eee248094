// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include <tutti/backends/cuda/ops/private_ops.hpp>
#include <tutti/graph/graph.hpp>

// Counts from a graph how many bytes of activations the CUDA backend's ops move through memory. Every operand of a row
// counts as often as the op's kernels read or write it, with perfect reuse within a kernel and no reuse between
// kernels.
namespace tutti::testing {

// Bytes for one row. Activations have `size` bytes an element, images and indices one.
inline std::int64_t activation_bytes(const Graph& g, const Node& n, std::int64_t size) {
  const auto bytes = [&](ValueId v) {
    const Value& x = g[v];
    return x.per_row && x.storage != Storage::labels ? x.shape.numel() * (x.precision == Precision::u8 ? 1 : size) : 0;
  };
  std::int64_t once = 0;
  for (ValueId v : n.inputs) once += bytes(v);
  for (ValueId v : n.outputs) once += bytes(v);
  // Adjusts for operands that are read a second time, or not at all.
  if (std::holds_alternative<op::BatchNorm>(n.op)) return once + bytes(n.inputs[0]);  // the statistics
  if (const auto* f = op_cast<cuda::BatchNormFromSums>(n.op)) return f->output ? once : 0;
  if (const auto* b = std::get_if<op::BatchNormBackward>(&n.op)) {
    // Two passes. The second reads the masked gradient that the first wrote, or dy again.
    const std::size_t x = b->second ? 2 : 1;
    const std::int64_t gradients = bytes(n.inputs[0]) * static_cast<std::int64_t>(x);
    return once + bytes(n.inputs[x]) + (b->residual ? bytes(n.outputs[3]) : gradients);
  }
  // The first pass is part of the data gradient. Step by step it would read g and x again.
  return once;
}

// Returns the bytes by op; the sum has the key "".
inline std::map<std::string, std::int64_t> activation_traffic(const Graph& g, std::int64_t size) {
  std::map<std::string, std::int64_t> sum;
  for (const Node& n : g.nodes) {
    const std::int64_t b = activation_bytes(g, n, size);
    sum[std::string(name_of(n.op))] += b;
    sum[""] += b;
  }
  return sum;
}

}  // namespace tutti::testing
