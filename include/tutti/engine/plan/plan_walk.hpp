// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <tutti/core/span.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/batch_slot.hpp>
#include <tutti/engine/plan/arenas.hpp>
#include <tutti/engine/plan/plan.hpp>
#include <tutti/engine/plan/prepared_plan.hpp>
#include <tutti/engine/plan/weight_packs.hpp>
#include <tutti/engine/value_watcher.hpp>

namespace tutti {

// Runs a plan's segments: passes each call with its operands to the backend. All references that it gets must outlive
// it.
class PlanWalk {
 public:
  // Called when the first `slices` slices of the gradient arena are final, except for the work that
  // Backend::finish_gradients() starts.
  using OnReady = std::function<void(std::size_t slices)>;
  // Nanoseconds of CPU time per node and phase, summed over workers.
  using Profile = std::vector<std::array<std::int64_t, 4>>;

  PlanWalk(Backend& backend, const Arenas& arenas, const BatchSlot& slot, WeightPacks& packs)
      : b_(backend), arenas_(arenas), slot_(slot), packs_(packs) {}

  // Sets the scalars of the following runs; null: the backend gets them elsewhere.
  void set_scalars(const StepScalars* s) noexcept { scalars_ = s; }
  // Kernels may give gradients of weights to the sink in the following runs; null: they write them to the arena.
  void give_gradients_to(GradientSink* s) noexcept { sink_ = s; }
  void profile(Profile* p) noexcept { profile_ = p; }
  // Sets the watcher, for plans with ops that run one by one and keep what they compute.
  void watch(ValueWatcher* w) noexcept { watcher_ = w; }

  void run(const PreparedPlan& p, const OnReady& on_ready) {
    packs_.run();
    b_.begin_gradients();
    const std::vector<Segment>& segments = p.plan.segments;
    const bool watched = span_watcher.load(std::memory_order_relaxed) != nullptr;
    std::optional<Span> pass;
    std::size_t first = 0, ready = 0;
    const auto run_to = [&](std::size_t end) {
      if (first < end) run_segments(p, first, end);
      first = end;
    };
    for (std::size_t s = 0; s < segments.size(); ++s) {
      // If spans are watched, the forward pass ends on all threads before the backward pass begins.
      if (watched && (s == 0 || segments[s].backward != segments[s - 1].backward)) {
        run_to(s);
        pass.reset();
        pass.emplace(Lane::step, segments[s].backward ? "backward" : "forward");
      }
      if (watcher_ != nullptr) {
        run_to(s + 1);
        b_.finish_gradients();
        watcher_->ran(*this, b_.memory(), p, segments[s]);
      }
      if (!on_ready || segments[s].ready <= ready) continue;
      ready = segments[s].ready;
      run_to(s + 1);
      on_ready(ready);
    }
    run_to(segments.size());
    b_.finish_gradients();
  }

  // Returns the address of a value; null for values that have no memory.
  [[nodiscard]] std::byte* find(const ValuePlace& at) const {
    switch (at.where) {
      case ValueStorage::image:
        return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(slot_.images()));
      case ValueStorage::labels:
        return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(slot_.labels()));
      default:
        return arenas_.find(at);
    }
  }

 private:
  // Fills a call's operands for rows [row, row + n).
  void fill(const PreparedPlan& p, Call& c, NodeId node, std::int64_t row, std::int64_t n, int worker) const {
    const auto i = static_cast<std::size_t>(node);
    const Node& nd = p.graph->nodes[i];
    const auto operand = [&](ValueId v, TensorRef& t) {
      const ValuePlace& at = p.plan.values[static_cast<std::size_t>(v)];
      t.dtype = at.desc.dtype;
      t.shape = at.desc.shape;
      std::byte* data = find(at);
      if ((*p.graph)[v].per_row) {
        t.shape[0] = n;
        if (at.where == ValueStorage::scratch)
          data += static_cast<std::size_t>(worker) * arenas_.scratch_stride();
        else
          data += static_cast<std::size_t>(row) * at.desc.row_bytes();
      }
      t.data = data;
    };
    c.inputs = static_cast<int>(nd.inputs.size());
    c.outputs = static_cast<int>(nd.outputs.size());
    for (std::size_t k = 0; k < nd.inputs.size(); ++k) operand(nd.inputs[k], c.in[k]);
    for (std::size_t k = 0; k < nd.outputs.size(); ++k) operand(nd.outputs[k], c.out[k]);
    if (std::byte* const packed = packs_.of(i); packed != nullptr) {
      c.in[1].data = packed;
      c.in[1].dtype = p.plan.compute;
    }
    c.worker = worker;
    c.shards = p.plan.shards;
    c.first_row = row;
    c.count_rows = p.plan.rows;
    c.scalars = scalars_;
    c.sink = watcher_ == nullptr ? sink_ : nullptr;
    c.node = nd.name;
    c.partial_stride = (p.plan.partitions[i].partial_bytes + 63) / 64 * 64;
    c.partial = arenas_.activations().at(p.plan.partial_offset[i]);
  }

  void dispatch(const PreparedPlan& p, NodeId node, Call& c) {
    const Span span(Lane::compute, name_of(p.graph->nodes[static_cast<std::size_t>(node)].op), c.node, c.in[0].shape[0],
                    detail_watcher);
    const auto start = profile_ != nullptr ? now() : 0;
    p.kernels[static_cast<std::size_t>(node)]->run(c);
    if (profile_ != nullptr) {
      auto& cell = (*profile_)[static_cast<std::size_t>(node)][static_cast<std::size_t>(c.phase)];
      std::atomic_ref(cell).fetch_add(now() - start, std::memory_order_relaxed);
    }
  }
  // Returns this thread's CPU time, so that the time of other processes does not count.
  static std::int64_t now() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1'000'000'000 + t.tv_nsec;
  }

  // Runs two loops for each segment: its tasks and then those of its finishes.
  void run_segments(const PreparedPlan& p, std::size_t first, std::size_t end) {
    loops_.clear();
    for (std::size_t s = first; s < end; ++s) {
      const Segment& seg = p.plan.segments[s];
      loops_.push_back(seg.whole ? tasks_of(p, seg.steps[0].node) : p.plan.shards);
      int finishes = 0;
      for (const NodeId node : seg.finishes) finishes += tasks_of(p, node);
      loops_.push_back(finishes);
    }
    b_.parallel(span_of(loops_), [&](int loop, int task, int worker) {
      const Segment& seg = p.plan.segments[first + static_cast<std::size_t>(loop) / 2];
      if (loop % 2 == 1)
        finish(p, seg, task, worker);
      else if (seg.whole)
        run_task(p, seg.steps[0].node, Phase::whole, task, worker);
      else
        run_shard(p, seg, task, worker);
    });
  }

  [[nodiscard]] static int tasks_of(const PreparedPlan& p, NodeId node) {
    return p.plan.partitions[static_cast<std::size_t>(node)].tasks;
  }

  void run_shard(const PreparedPlan& p, const Segment& seg, int shard, int worker) {
    const std::int64_t begin = p.plan.shard_begin(shard), end = p.plan.shard_begin(shard + 1);
    for (std::int64_t row = begin; row < end; row += seg.chunk_rows)
      for (const Step& step : seg.steps) {
        Call c;
        fill(p, c, step.node, row, std::min(seg.chunk_rows, end - row), worker);
        c.phase = step.phase;
        c.shard = shard;
        c.first_chunk = row == begin;
        c.partial = c.partial_of(shard);
        dispatch(p, step.node, c);
      }
  }

  void finish(const PreparedPlan& p, const Segment& seg, int task, int worker) {
    auto node = seg.finishes.begin();
    for (; task >= tasks_of(p, *node); ++node) task -= tasks_of(p, *node);
    run_task(p, *node, Phase::finish, task, worker);
  }

  void run_task(const PreparedPlan& p, NodeId node, Phase phase, int task, int worker) {
    Call c;
    fill(p, c, node, 0, p.plan.rows, worker);
    c.phase = phase;
    c.task = task;
    c.tasks = tasks_of(p, node);
    dispatch(p, node, c);
  }

  Backend& b_;
  const Arenas& arenas_;
  const BatchSlot& slot_;
  WeightPacks& packs_;
  const StepScalars* scalars_ = nullptr;
  GradientSink* sink_ = nullptr;
  Profile* profile_ = nullptr;
  ValueWatcher* watcher_ = nullptr;
  std::vector<int> loops_;
};

}  // namespace tutti
