// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/plan/plan.hpp>

namespace tutti {

// Plans one batch size of a graph: segments, lifetimes, offsets. Knows of the backend only what the queries return.
[[nodiscard]] TUTTI_CORE_FUNCTION Plan make_plan(const Graph& g, const PlanOptions& options, const PlanQueries& queries,
                                                 const ArenaLayout& parameters, const ArenaLayout& states);

#if TUTTI_CORE_DEFINITIONS

namespace detail {

// A block of bytes that is in use from time `first` to time `last`, both included.
struct Lifetime {
  std::size_t bytes = 0;
  int first = std::numeric_limits<int>::max(), last = -1;
  std::size_t offset = 0;
};

// Assigns an offset to each block so that no two blocks that are in use at the same time overlap: the largest first,
// each at the lowest free position. Returns the total size.
inline std::size_t place(std::vector<Lifetime>& blocks) {
  constexpr std::size_t align = 64;
  std::vector<Lifetime*> order, placed, taken;
  for (Lifetime& b : blocks)
    if (b.bytes > 0) order.push_back(&b);
  std::sort(order.data(), order.data() + order.size(),
            [](const Lifetime* a, const Lifetime* b) { return a->bytes != b->bytes ? a->bytes > b->bytes : a < b; });
  std::size_t total = 0;
  for (Lifetime* const b : order) {
    taken.clear();
    for (Lifetime* const other : placed)
      if (other->first <= b->last && b->first <= other->last) taken.push_back(other);
    std::sort(taken.data(), taken.data() + taken.size(),
              [](const Lifetime* a, const Lifetime* c) { return a->offset < c->offset; });
    std::size_t at = 0;
    for (const Lifetime* const t : taken) {
      if (at + b->bytes <= t->offset) break;
      at = std::max(at, (t->offset + t->bytes + align - 1) / align * align);
    }
    b->offset = at;
    total = std::max(total, at + b->bytes);
    placed.push_back(b);
  }
  return (total + align - 1) / align * align;
}

class Planner {
 public:
  Planner(const Graph& g, const PlanOptions& o, const PlanQueries& q, const ArenaLayout& parameters,
          const ArenaLayout& states)
      : g_(g), q_(q), o_(o) {
    if (o.rows < 1) fail<UsageError>("plan", "a batch of 1 row or more", o.rows);
    p_.rows = o.rows;
    p_.compute = o.compute;
    p_.master = o.master;
    p_.training = o.training;
    p_.shards = static_cast<int>(std::min<std::int64_t>(o.shards, o.rows));
    p_.parts = o.parts;
    describe(parameters, states);
    ask();
    cut();
    place_values();
    mark_ready(parameters);
  }
  Plan take() { return std::move(p_); }

 private:
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

  void describe(const ArenaLayout& parameters, const ArenaLayout& states) {
    p_.values.resize(g_.values.size());
    for (std::size_t i = 0; i < g_.values.size(); ++i) {
      const Value& v = g_.values[i];
      ValuePlace& at = p_.values[i];
      at.desc.shape = v.per_row ? v.shape.with_rows(o_.rows) : v.shape;
      switch (v.precision) {
        case Precision::compute:
          at.desc.dtype = o_.compute;
          break;
        case Precision::master:
          at.desc.dtype = o_.master;
          break;
        case Precision::metric:
          at.desc.dtype = DType::f64;
          break;
        case Precision::u8:
          at.desc.dtype = DType::u8;
          break;
        case Precision::i32:
          at.desc.dtype = DType::i32;
          break;
      }
      const auto in_arena = [&](const ArenaLayout& layout, ValueStorage where) {
        at.where = where;
        at.offset = layout.find(v.name)->offset * size_of(layout.dtype);
      };
      switch (v.storage) {
        case Storage::image:
          at.where = ValueStorage::image;
          break;
        case Storage::labels:
          at.where = ValueStorage::labels;
          break;
        case Storage::parameter:
          in_arena(parameters, ValueStorage::parameter);
          break;
        case Storage::gradient:
          in_arena(parameters, ValueStorage::gradient);
          break;
        case Storage::state:
          in_arena(states, ValueStorage::state);
          break;
        case Storage::activation:
          break;
      }
    }
  }

  [[nodiscard]] NodeDesc node_desc(const Node& n) const {
    NodeDesc d;
    for (ValueId v : n.inputs) d.in.push_back(p_.desc(v));
    for (ValueId v : n.outputs) d.out.push_back(p_.desc(v));
    d.compute = o_.compute;
    d.rows = o_.rows;
    d.shards = p_.shards;
    d.parts = o_.parts;
    return d;
  }

  void ask() {
    p_.pack_of.assign(g_.nodes.size(), -1);
    for (std::size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      const NodeDesc d = node_desc(n);
      p_.partitions.push_back(q_.partition(static_cast<NodeId>(i), d));
      if (!reads_weights(n.op)) continue;
      const std::size_t bytes = q_.pack_bytes(static_cast<NodeId>(i));
      if (bytes == 0) continue;
      if (q_.shared_form) {
        const auto same =
            std::find_if(p_.packs.begin(), p_.packs.end(), [&](const Pack& k) { return k.parameter == n.inputs[1]; });
        if (same != p_.packs.end()) {
          p_.pack_of[i] = static_cast<std::int32_t>(same - p_.packs.begin());
          continue;
        }
      }
      p_.pack_of[i] = static_cast<std::int32_t>(p_.packs.size());
      p_.packs.push_back({static_cast<NodeId>(i), n.inputs[1], p_.packed_bytes, bytes});
      p_.packed_bytes += (bytes + 63) / 64 * 64;
    }
  }

  // Divides the list of nodes into segments.
  void cut() {
    Segment open;
    std::vector<char> late(g_.values.size(), 0);  // made by a finish of the open segment
    const auto close = [&] {
      if (!open.steps.empty()) p_.segments.push_back(std::move(open));
      open = {};
      std::fill(late.begin(), late.end(), char{0});
    };
    for (std::size_t i = 0; i < g_.nodes.size(); ++i) {
      if (o_.one_by_one) close();
      const Node& n = g_.nodes[i];
      const auto id = static_cast<NodeId>(i);
      const Division division = p_.partitions[i].division;
      if (division == Division::whole) {
        close();
        open.steps.push_back({id, Phase::whole});
        open.whole = true;
        open.backward = n.backward;
        close();
        continue;
      }
      for (ValueId v : n.inputs)
        if (late[index(v)]) {
          close();
          break;
        }
      open.backward = open.backward || n.backward;
      if (division == Division::rows) {
        open.steps.push_back({id, Phase::apply});
        continue;
      }
      open.steps.push_back({id, Phase::reduce});
      open.finishes.push_back(id);
      if (division == Division::reduce) {
        for (ValueId v : n.outputs)
          if (!g_[v].per_row || p_.partitions[i].late_rows) late[index(v)] = 1;
        continue;
      }
      close();
      open.steps.push_back({id, Phase::apply});
      open.backward = n.backward;
    }
    close();
  }

  void place_values() {
    const std::size_t n_values = g_.values.size();
    // Times in `arena` are segments. Times in `scratch`, which holds one chunk, are steps.
    std::vector<Lifetime> arena(n_values + g_.nodes.size()), scratch(n_values);
    std::vector<char> rows_only(n_values, 1);
    int clock = 0;
    const auto touch = [](Lifetime& l, int t) {
      l.first = std::min(l.first, t);
      l.last = std::max(l.last, t);
    };
    for (std::size_t s = 0; s < p_.segments.size(); ++s) {
      Segment& seg = p_.segments[s];
      std::size_t row_bytes = 1;
      for (const Step& step : seg.steps) {
        const Node& n = g_.nodes[index(step.node)];
        ++clock;
        const bool first_pass =
            step.phase == Phase::reduce && p_.partitions[index(step.node)].division == Division::two_pass;
        for (const auto* list : {&n.inputs, &n.outputs})
          for (std::size_t k = 0; k < list->size(); ++k) {
            const ValueId v = (*list)[k];
            // The first pass does not write the result yet, so the result may be in scratch.
            if (first_pass && list == &n.outputs && v == n.outputs[0]) continue;
            touch(arena[index(v)], static_cast<int>(s));
            touch(scratch[index(v)], clock);
            // What the finish reads or writes is needed for all rows at once and cannot be part of a chunk.
            const bool late = (list == &n.outputs || k >= 2) && p_.partitions[index(step.node)].late_rows;
            if (!g_[v].per_row || seg.whole || late)
              rows_only[index(v)] = 0;
            else if (g_[v].storage == Storage::activation)
              row_bytes = std::max(row_bytes, p_.desc(v).row_bytes());
          }
        const std::size_t partial = p_.partitions[index(step.node)].partial_bytes;
        if (step.phase == Phase::reduce && partial > 0) {
          Lifetime& l = arena[n_values + index(step.node)];
          l.bytes = (partial + 63) / 64 * 64 * static_cast<std::size_t>(p_.shards);
          touch(l, static_cast<int>(s));
        }
      }
      if (!seg.whole) {
        const std::int64_t shard_rows = (o_.rows + p_.shards - 1) / p_.shards;
        seg.chunk_rows = std::clamp<std::int64_t>(static_cast<std::int64_t>(o_.chunk_bytes / row_bytes), 1, shard_rows);
      }
    }
    for (std::size_t v = 0; v < n_values; ++v) {
      if (g_.values[v].storage != Storage::activation || arena[v].last < 0) continue;
      const bool kept = o_.keep_all || static_cast<ValueId>(v) == g_.logits || static_cast<ValueId>(v) == g_.metrics;
      if (kept) arena[v].last = static_cast<int>(p_.segments.size());
      if (o_.keep_all) arena[v].first = 0;
      const TensorDesc& d = p_.values[v].desc;
      if (rows_only[v] && !kept && arena[v].first == arena[v].last) {
        p_.values[v].where = ValueStorage::scratch;
        scratch[v].bytes =
            static_cast<std::size_t>(p_.segments[static_cast<std::size_t>(arena[v].first)].chunk_rows) * d.row_bytes();
        arena[v].bytes = 0;
      } else {
        p_.values[v].where = ValueStorage::activation;
        arena[v].bytes = d.bytes();
      }
    }
    p_.scratch_bytes = place(scratch);
    p_.activation_bytes = place(arena);
    p_.partial_offset.resize(g_.nodes.size());
    for (std::size_t i = 0; i < g_.nodes.size(); ++i) p_.partial_offset[i] = arena[n_values + i].offset;
    for (std::size_t v = 0; v < n_values; ++v) {
      if (p_.values[v].where == ValueStorage::scratch) p_.values[v].offset = scratch[v].offset;
      if (p_.values[v].where == ValueStorage::activation) p_.values[v].offset = arena[v].offset;
    }
  }

  void mark_ready(const ArenaLayout& parameters) {
    std::vector<std::size_t> last(parameters.slices.size(), 0);
    for (std::size_t s = 0; s < p_.segments.size(); ++s)
      for (const Step& step : p_.segments[s].steps)
        for (ValueId v : g_.nodes[index(step.node)].outputs)
          if (g_[v].storage == Storage::gradient)
            for (std::size_t k = 0; k < parameters.slices.size(); ++k)
              if (parameters.slices[k].name == g_[v].name) last[k] = s;
    std::size_t ready = 0;
    for (std::size_t s = 0; s < p_.segments.size(); ++s) {
      while (ready < last.size() && parameters.slices[ready].trainable && last[ready] <= s) ++ready;
      p_.segments[s].ready = p_.segments[s].backward ? ready : 0;
    }
  }

  const Graph& g_;
  const PlanQueries& q_;
  const PlanOptions& o_;
  Plan p_;
};

}  // namespace detail

TUTTI_CORE_FUNCTION Plan make_plan(const Graph& g, const PlanOptions& options, const PlanQueries& queries,
                                   const ArenaLayout& parameters, const ArenaLayout& states) {
  return detail::Planner(g, options, queries, parameters, states).take();
}

#endif

}  // namespace tutti
