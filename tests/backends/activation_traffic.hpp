// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include <tutti/backends/cuda/ops/cached_norms.hpp>
#include <tutti/backends/cuda/ops/private_ops.hpp>
#include <tutti/graph/graph.hpp>

// Counts from a graph how many bytes of activations the CUDA backend's ops move through memory. Every operand of a row
// counts as often as the op's kernels read or write it, with perfect reuse within a kernel and no reuse between
// kernels.
namespace tutti::testing {

// Returns the bytes for one row. Elements of activations have `size` bytes, elements of images one, indices none.
inline std::int64_t activation_bytes(const Graph& g, const Node& n, std::int64_t size) {
  const auto bytes = [&](ValueId v) {
    const Value& x = g[v];
    return x.per_row && x.storage != Storage::labels ? x.shape.numel() * (x.precision == Precision::u8 ? 1 : size) : 0;
  };
  std::int64_t once = 0;
  for (ValueId v : n.inputs) once += bytes(v);
  for (ValueId v : n.outputs) once += bytes(v);
  // Adjusts for operands that an op reads twice or does not read.
  if (std::holds_alternative<op::BatchNorm>(n.op)) return once + bytes(n.inputs[0]);  // for the statistics
  if (op_cast<cuda::BatchNormWithMask>(n.op) != nullptr) return once + bytes(n.inputs[0]);
  if (const auto* b = op_cast<cuda::BatchNormBackwardFromMask>(n.op))
    return once + bytes(n.inputs[b->second ? 2 : 1]) + bytes(n.outputs[3]);
  // The two norms of a block with a convolution in its shortcut run together, except in a cache (norm_shortcut.hpp).
  if (op_cast<cuda::BatchNormOfShortcut>(n.op) != nullptr) return bytes(n.inputs[0]);
  if (op_cast<cuda::BatchNormAddShortcut>(n.op) != nullptr) return once + bytes(n.inputs[0]) - bytes(n.inputs[5]);
  if (const auto* b = op_cast<cuda::BatchNormBackwardAddShortcut>(n.op)) {
    // The first pass writes the sum of two gradients to the place of ds, otherwise the second one reads dy and the mask
    // again. Both read x and its shortcut's input.
    const std::int64_t mask = bytes(n.inputs[b->second ? 7 : 6]), tensor = bytes(n.outputs[0]);
    return once + 2 * tensor + (b->second ? 2 * tensor : tensor + mask);
  }
  if (op_cast<cuda::BatchNormBackwardOfShortcut>(n.op) != nullptr) return 0;
  if (const auto* f = op_cast<cuda::BatchNormFromSums>(n.op)) return f->output ? once : 0;
  if (const auto* b = std::get_if<op::BatchNormBackward>(&n.op)) {
    // The op makes two passes. The second pass reads the masked gradient that the first pass wrote, or dy again.
    const std::size_t x = b->second ? 2 : 1;
    const std::int64_t gradients = bytes(n.inputs[0]) * static_cast<std::int64_t>(x);
    return once + bytes(n.inputs[x]) + (b->residual ? bytes(n.outputs[3]) : gradients);
  }
  // The op that computes the data gradient also makes the first pass. Without fusion that pass would read g and x
  // again.
  return once;
}

// Returns the bytes by op. The key "" has the sum of all ops.
inline std::map<std::string, std::int64_t> activation_traffic(const Graph& g, std::int64_t size) {
  std::map<std::string, std::int64_t> sum;
  for (const Node& n : g.nodes) {
    const std::int64_t b = activation_bytes(g, n, size);
    sum[std::string(name_of(n.op))] += b;
    sum[""] += b;
  }
  return sum;
}

// What an L2 cache does for batch norms: how many bytes of their second passes it has kept from the first, and how many
// batch norms run in one kernel because it holds all their data.
struct NormCache {
  std::int64_t forward = 0, backward = 0;
  int forward_once = 0, backward_once = 0, norms = 0;
};
// Counts the two norms of a block with a convolution in its shortcut, and returns whether the node is one of them. They
// run together if the cache does not hold the tensors of the shortcut's norm alone.
inline bool add_shortcut_norms(const Graph& g, const Node& n, std::int64_t rows, std::int64_t cache, NormCache& r) {
  const bool of = op_cast<cuda::BatchNormOfShortcut>(n.op) != nullptr,
             adds = op_cast<cuda::BatchNormAddShortcut>(n.op) != nullptr,
             back_of = op_cast<cuda::BatchNormBackwardOfShortcut>(n.op) != nullptr;
  const auto* const back = op_cast<cuda::BatchNormBackwardAddShortcut>(n.op);
  if (!of && !adds && !back_of && back == nullptr) return false;
  const std::int64_t tensor = g[n.inputs[0]].shape.numel() * 2 * rows;
  const auto kept = [&](std::int64_t again, std::int64_t all) {
    return static_cast<std::int64_t>(static_cast<double>(again) *
                                     std::min(1.0, static_cast<double>(cache) / static_cast<double>(all)));
  };
  ++r.norms;
  if (of || adds) {
    const bool together = !cuda::fits_cache(cuda::norm_bytes(tensor, false), cache);
    const std::int64_t all = cuda::norm_bytes(tensor, adds);
    if (of && together) return true;  // no second pass
    r.forward += kept(tensor, all);
    if (!together && cuda::fits_cache(all, cache)) ++r.forward_once;
    return true;
  }
  const bool together = !cuda::fits_cache(cuda::norm_backward_bytes(tensor, false, false), cache);
  if (back_of && together) return true;
  const bool second = back != nullptr && back->second;
  // Together, the second pass reads the gradient, x and s.
  const std::int64_t all = together ? tensor * (second ? 6 : 5) : cuda::norm_backward_bytes(tensor, second, !back_of);
  r.backward += kept(tensor * (together ? 3 : 2), all);
  if (!together && cuda::fits_cache(all, cache)) ++r.backward_once;
  return true;
}
// The second pass goes through the rows from the last to the first. The cache drops what was used least recently, so
// it has kept a row if all tensors have together at most `cache` bytes from there to the end. elements: 16 bits.
inline NormCache norm_cache(const Graph& g, std::int64_t rows, std::int64_t cache) {
  NormCache r;
  for (const Node& n : g.nodes) {
    if (add_shortcut_norms(g, n, rows, cache, r)) continue;
    const auto* const plain = std::get_if<op::BatchNorm>(&n.op);
    const auto* const gradient = std::get_if<op::BatchNormBackward>(&n.op);
    const auto* const from_mask = op_cast<cuda::BatchNormBackwardFromMask>(n.op);
    const bool forward = plain != nullptr || op_cast<cuda::BatchNormWithMask>(n.op) != nullptr;
    if (!forward && gradient == nullptr && from_mask == nullptr) continue;
    const bool second = from_mask != nullptr ? from_mask->second : gradient != nullptr && gradient->second;
    const bool keep = from_mask != nullptr || (gradient != nullptr && gradient->residual);
    const std::int64_t tensor = g[n.outputs[0]].shape.numel() * 2 * rows;
    const std::int64_t all = forward ? cuda::norm_bytes(tensor, plain == nullptr || plain->residual)
                                     : cuda::norm_backward_bytes(tensor, second, keep);
    const std::int64_t again = forward ? tensor : tensor * (second && !keep ? 3 : 2);
    const auto kept = static_cast<std::int64_t>(static_cast<double>(again) *
                                                std::min(1.0, static_cast<double>(cache) / static_cast<double>(all)));
    (forward ? r.forward : r.backward) += kept;
    // There is no such kernel for two gradients without a kept sum, and for sums of a residual without relu.
    const bool kernel = forward ? plain == nullptr || !plain->residual
                                : from_mask != nullptr || (!gradient->second && !gradient->residual);
    if (kernel && cuda::fits_cache(all, cache)) ++(forward ? r.forward_once : r.backward_once);
    ++r.norms;
  }
  return r;
}

}  // namespace tutti::testing
