// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/engine/plan/plan.hpp>
#include <tutti/engine/step/gradient_sink.hpp>
#include <tutti/graph/ops/dropout.hpp>
#include <tutti/tensor/view.hpp>

namespace tutti {

// Numbers that change from step to step. They are not part of the plan, so that a captured run stays valid.
struct StepScalars {
  double loss_scale = 1;
  double inv_global_batch = 1;  // 1 / rows of all ranks together
  BatchKey key{};               // of the random numbers
};

// One invocation of an op's kernel: the operands for the rows of this call, and its place in the run.
struct Call {
  static constexpr std::size_t max_operands = 16;

  std::array<TensorRef, max_operands> in, out;
  int inputs = 0, outputs = 0;
  Phase phase = Phase::whole;
  int shard = 0, shards = 1;
  int task = 0, tasks = 1;  // of Phase::whole and of Phase::finish
  int worker = 0;
  std::int64_t first_row = 0;    // the first row of this call in the batch
  std::int64_t count_rows = 0;   // rows of the whole batch on this rank
  bool first_chunk = true;       // whether it is the first chunk of its shard
  std::byte* partial = nullptr;  // in reduce: of this shard; in finish: of shard 0; the next is at partial_stride
  std::size_t partial_stride = 0;
  void* prepared = nullptr;              // what prepare() made for this node
  const StepScalars* scalars = nullptr;  // null: the backend has them already (StepFinisher::begin)
  GradientSink* sink = nullptr;          // if not null, it may get a gradient of weights instead of the output
  std::string_view node;                 // name of the node's layer

  [[nodiscard]] std::byte* partial_of(int l) const { return partial + static_cast<std::size_t>(l) * partial_stride; }
};

// Weights to pack, and the destination.
struct PackTarget {
  TensorRef weights;
  void* to = nullptr;
};

// Input for what a kernel prepares before the first run, for example primitives for each number of rows.
struct PrepareInfo {
  NodeDesc desc;
  Partition partition;
  std::vector<std::int64_t> chunk_rows;  // every number of rows that this node will be called with
  int workers = 1;
};

}  // namespace tutti
