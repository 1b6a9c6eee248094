// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/view.hpp>

namespace tutti {

// How a backend divides an op.
//   rows      any range of rows independently
//   reduce    rows into a partial result for each shard, then one finish (or `tasks` independent ones)
//   two_pass  like reduce, then rows; only the second pass writes the first output
//   whole     in one call (or `tasks` independent ones)
enum class Division : std::uint8_t { whole, rows, reduce, two_pass };

struct Partition {  // How an op is divided into tasks.
  Division division = Division::whole;
  int tasks = 1;                  // for whole, and for the finish of reduce and two_pass
  std::size_t partial_bytes = 0;  // of the partial result of each shard, for reduce and two_pass
  // For reduce: the finish also writes the outputs with rows, and reads the inputs with rows after the second.
  bool late_rows = false;
};

enum class Phase : std::uint8_t { whole, reduce, finish, apply };  // Phase of an op that reduces over parts.

struct Step {  // One op, or a phase of it.
  NodeId node;
  Phase phase;
};

// A part of the run between two barriers. Its row steps are processed chunk by chunk, all steps on one chunk before the
// next chunk, so that a chunk stays in the cache from batch norm to convolution to statistics.
struct Segment {
  std::vector<Step> steps;
  std::vector<NodeId> finishes;
  bool whole = false;           // one node, Phase::whole
  std::int64_t chunk_rows = 0;  // rows of a chunk, for segments of row steps
  std::size_t ready = 0;        // slices of the gradient arena that are final after this segment
  bool backward = false;
};

enum class ValueStorage : std::uint8_t { nowhere, image, labels, parameter, state, gradient, activation, scratch };

struct ValuePlace {  // The memory of a value and its position there.
  ValueStorage where = ValueStorage::nowhere;
  std::size_t offset = 0;  // bytes
  TensorDesc desc;         // with the plan's rows
};

// Weights in the form that an op reads (another type, another layout), made from the parameter arena once for each
// update.
struct Pack {
  NodeId node;
  ValueId parameter;
  std::size_t offset;  // bytes into the packed arena
  std::size_t bytes;
};

struct Plan {  // A graph that is ready to run: order, positions and sizes.
  std::int64_t rows = 0;
  DType compute = DType::f32, master = DType::f32;
  bool training = false;
  int shards = 1;
  int parts = 1;  // NodeDesc::parts
  std::vector<Segment> segments;
  std::vector<ValuePlace> values;
  std::vector<Partition> partitions;        // per node
  std::vector<std::size_t> partial_offset;  // per node, bytes into the activation arena
  std::vector<Pack> packs;
  std::vector<std::int32_t> pack_of;  // per node: index into packs or -1
  std::size_t activation_bytes = 0;
  std::size_t scratch_bytes = 0;  // per worker
  std::size_t packed_bytes = 0;

  [[nodiscard]] std::int64_t shard_begin(int shard) const { return rows * shard / shards; }
  [[nodiscard]] const TensorDesc& desc(ValueId v) const { return values[static_cast<std::size_t>(v)].desc; }
};

// Types and shapes of a node's operands, for a backend that chooses its kernel.
struct NodeDesc {
  std::vector<TensorDesc> in, out;
  DType compute = DType::f32;
  std::int64_t rows = 0;
  int shards = 1;
  // Into how many tasks an op that computes rows independently may cut the images of this batch, with Division::whole,
  // because there are fewer rows than threads; 1: into none. The tasks of tutti's own kernels compute the same
  // bits as the uncut op; oneDNN's are tested to do so for some shapes.
  int parts = 1;
};

// The planner's questions to a backend.
struct PlanQueries {
  std::function<Partition(NodeId, const NodeDesc&)> partition;
  // Returns the bytes of the packed weights of a node that `partition` was called for; 0: the op reads the master
  // weights.
  std::function<std::size_t(NodeId)> pack_bytes;
  // Whether all nodes that read a packed parameter read the same packed form.
  bool shared_form = false;
};

struct PlanOptions {  // Options of a planner.
  std::int64_t rows = 1;
  DType compute = DType::f32, master = DType::f32;
  bool training = true;
  int shards = 8;
  int parts = 1;                         // NodeDesc::parts
  std::size_t chunk_bytes = 256 * 1024;  // size of a chunk of the largest tensor in a row segment
  bool keep_all = false;                 // every activation stays readable after the run, for tests and debugging
  bool one_by_one = false;               // each op has segments of its own
};

// Returns the layout of the parameter and gradient arenas: trainable parameters in the order in which their gradients
// become final, then the rest.
[[nodiscard]] TUTTI_CORE_FUNCTION ArenaLayout parameter_layout(const Graph& g, DType master);
// Returns the layout of the running statistics.
[[nodiscard]] TUTTI_CORE_FUNCTION ArenaLayout state_layout(const Graph& g, DType master);

#if TUTTI_CORE_DEFINITIONS

TUTTI_CORE_FUNCTION ArenaLayout parameter_layout(const Graph& g, DType master) {
  ArenaLayout layout;
  layout.dtype = master;
  std::vector<ValueId> order;
  std::vector<char> placed(g.values.size(), 0);
  std::vector<ValueId> parameter_of(g.values.size(), no_value);
  for (std::size_t v = 0; v < g.values.size(); ++v)
    if (g.values[v].storage == Storage::parameter && g.values[v].gradient != no_value)
      parameter_of[static_cast<std::size_t>(g.values[v].gradient)] = static_cast<ValueId>(v);
  for (const Node& n : g.nodes)
    for (ValueId o : n.outputs)
      if (const ValueId p = parameter_of[static_cast<std::size_t>(o)]; p != no_value) {
        order.push_back(p);
        placed[static_cast<std::size_t>(p)] = 1;
      }
  const std::size_t trained = order.size();
  for (std::size_t v = 0; v < g.values.size(); ++v)
    if (g.values[v].storage == Storage::parameter && !placed[v]) order.push_back(static_cast<ValueId>(v));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Value& v = g[order[i]];
    layout.append(v.name, v.shape, i < trained && v.trainable, v.decay, v.lr_scale);
  }
  return layout;
}

TUTTI_CORE_FUNCTION ArenaLayout state_layout(const Graph& g, DType master) {
  ArenaLayout layout;
  layout.dtype = master;
  for (const Value& v : g.values)
    if (v.storage == Storage::state) layout.append(v.name, v.shape, false, false);
  return layout;
}

#endif

}  // namespace tutti
