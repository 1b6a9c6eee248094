// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/plan/planner.hpp>

namespace tutti::testing {

// Returns how a backend divides an op: at random within the op's semantics, or as the CPU backends do if `random` is
// null.
inline Partition divide(const Op& o, const NodeDesc& d, Rng* random) {
  const bool custom = std::holds_alternative<op::Custom>(o) || std::holds_alternative<op::CustomBackward>(o);
  const bool two_pass = std::holds_alternative<op::BatchNorm>(o) || std::holds_alternative<op::BatchNormBackward>(o);
  bool sums = std::holds_alternative<op::SoftmaxCrossEntropy>(o) || std::holds_alternative<op::BiasBackward>(o) ||
              std::holds_alternative<op::LinearBackwardWeights>(o) ||
              std::holds_alternative<op::Conv2dBackwardWeights>(o);
  if (custom || (random != nullptr && random->below(4) == 0))
    return {Division::whole, random != nullptr ? 1 + static_cast<int>(random->below(3)) : 1, 0};
  if (two_pass) return {Division::two_pass, 1, static_cast<std::size_t>(d.in[0].shape[1]) * 16};
  if (sums)
    return {Division::reduce, random != nullptr ? 1 + static_cast<int>(random->below(3)) : 1,
            random != nullptr ? 1 + random->below(5000) : 256};
  if (random != nullptr && random->below(4) == 0)
    return {Division::reduce, 1 + static_cast<int>(random->below(3)), 1 + random->below(5000), true};
  return {Division::rows};
}

inline std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// A range of bytes of the activation arena or of scratch memory, and the time from its first to its last use.
struct Block {
  std::string name;
  std::size_t begin = 0, end = 0;
  int first = std::numeric_limits<int>::max(), last = -1;

  void touch(int t) {
    first = std::min(first, t);
    last = std::max(last, t);
  }
};

inline int overlaps(const std::vector<Block>& blocks) {
  int bad = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const Block &a = blocks[i], &b = blocks[j];
      const bool together = a.first <= b.last && b.first <= a.last, over = a.begin < b.end && b.begin < a.end;
      if (together && over && ++bad == 1)
        MESSAGE(a.name << " [" << a.begin << ", " << a.end << ") overlaps " << b.name << " [" << b.begin << ", "
                       << b.end << ")");
    }
  return bad;
}

// Walks through a plan and checks what Plan documents, without the planner's code.
class PlanCheck {
 public:
  PlanCheck(const Graph& g, const Plan& p, const ArenaLayout& parameters, bool keep_all)
      : g_(g), p_(p), parameters_(parameters), keep_all_(keep_all), made_(g.values.size(), -1) {}

  void run() {
    order();
    memory();
    ready();
  }

 private:
  enum { never = -1 };

  [[nodiscard]] bool given(ValueId v) const {
    const Storage s = g_[v].storage;
    return s == Storage::image || s == Storage::labels || s == Storage::parameter || s == Storage::state;
  }

  // Checks that every phase of every node occurs once, in the right order, and reads only existing values: all values
  // of earlier segments, and in its own segment only the rows of the same chunk.
  void order() {
    const std::size_t nodes = g_.nodes.size();
    std::vector<int> whole(nodes), reduce(nodes), apply(nodes), finish(nodes);
    int too_early = 0;
    for (std::size_t s = 0; s < p_.segments.size(); ++s) {
      const Segment& seg = p_.segments[s];
      CHECK(!seg.steps.empty());
      if (seg.whole) {
        REQUIRE(seg.steps.size() == 1);
        CHECK(seg.finishes.empty());
        CHECK(seg.steps[0].phase == Phase::whole);
      } else {
        CHECK(seg.chunk_rows >= 1);
        CHECK(seg.chunk_rows <= (p_.rows + p_.shards - 1) / p_.shards);
      }
      std::vector<char> chunk(g_.values.size(), 0);  // values whose rows of this chunk exist
      std::vector<ValueId> after;                    // values that exist after the segment
      std::vector<ValueId> late;                     // values that a finish phase writes
      const auto read = [&](ValueId v) {
        if (given(v)) return;
        const bool earlier = made_[at(v)] != never && made_[at(v)] < static_cast<int>(s);
        if (!earlier && (seg.whole || !g_[v].per_row || chunk[at(v)] == 0)) ++too_early;
      };
      const auto write = [&](ValueId v) {
        if (g_[v].per_row && !seg.whole) chunk[at(v)] = 1;
        after.push_back(v);
      };
      for (const Step& step : seg.steps) {
        const Node& n = g_.nodes[at(step.node)];
        const Division d = p_.partitions[at(step.node)].division;
        CHECK((step.phase == Phase::whole) == (d == Division::whole));
        for (ValueId v : n.inputs) read(v);
        if (step.phase == Phase::whole) {
          ++whole[at(step.node)];
          for (ValueId v : n.outputs) write(v);
        } else if (step.phase == Phase::reduce) {
          CHECK((d == Division::reduce || d == Division::two_pass));
          ++reduce[at(step.node)];
          CHECK(std::find(seg.finishes.begin(), seg.finishes.end(), step.node) != seg.finishes.end());
          if (p_.partitions[at(step.node)].late_rows)
            late.insert(late.end(), n.outputs.begin(), n.outputs.end());
          else
            for (std::size_t k = d == Division::two_pass ? 1 : 0; k < n.outputs.size(); ++k) write(n.outputs[k]);
        } else {
          CHECK((d == Division::rows || d == Division::two_pass));
          ++apply[at(step.node)];
          if (d == Division::two_pass) {
            // The second pass reads the results of the first one.
            for (std::size_t k = 1; k < n.outputs.size(); ++k) read(n.outputs[k]);
            write(n.outputs[0]);
          } else {
            for (ValueId v : n.outputs) write(v);
          }
        }
      }
      for (NodeId f : seg.finishes) {
        ++finish[at(f)];
        CHECK(reduce[at(f)] == 1);
      }
      for (ValueId v : late) {
        CHECK(p_.values[at(v)].where != ValueStorage::scratch);
        after.push_back(v);
      }
      for (ValueId v : after) {
        CHECK(made_[at(v)] == never);
        made_[at(v)] = static_cast<int>(s);
      }
    }
    CHECK(too_early == 0);
    int wrong = 0;
    for (std::size_t i = 0; i < nodes; ++i) {
      const Division d = p_.partitions[i].division;
      const bool sums = d == Division::reduce || d == Division::two_pass;
      wrong += whole[i] != (d == Division::whole) || reduce[i] != sums || finish[i] != sums ||
               apply[i] != (d == Division::rows || d == Division::two_pass);
    }
    CHECK(wrong == 0);
    for (ValueId v = 0; v < static_cast<ValueId>(g_.values.size()); ++v)
      if (g_[v].producer >= 0 &&
          std::find(g_.nodes[at(g_[v].producer)].outputs.begin(), g_.nodes[at(g_[v].producer)].outputs.end(), v) !=
              g_.nodes[at(g_[v].producer)].outputs.end())
        CHECK(made_[at(v)] != never);
  }

  // Checks that values that are needed at the same time do not share bytes. Time is counted in segments for the arena,
  // and in steps for scratch memory.
  void memory() {
    std::vector<Block> values(g_.values.size()), partials, scratch;
    for (std::size_t s = 0; s < p_.segments.size(); ++s) {
      const Segment& seg = p_.segments[s];
      std::map<ValueId, Block> mine;
      for (std::size_t k = 0; k < seg.steps.size(); ++k) {
        const Step step = seg.steps[k];
        const Node& n = g_.nodes[at(step.node)];
        const bool first_pass =
            step.phase == Phase::reduce && p_.partitions[at(step.node)].division == Division::two_pass;
        std::vector<ValueId> touched = n.inputs;
        touched.insert(touched.end(), n.outputs.begin() + (first_pass ? 1 : 0), n.outputs.end());
        for (ValueId v : touched) {
          const ValuePlace& place = p_.values[at(v)];
          if (place.where == ValueStorage::activation) {
            values[at(v)].touch(static_cast<int>(s));
          } else if (place.where == ValueStorage::scratch) {
            CHECK(!seg.whole);
            CHECK(g_[v].per_row);
            // A value in scratch memory is written and read in one segment.
            CHECK(made_[at(v)] == static_cast<int>(s));
            Block& b = mine[v];
            b.name = g_[v].name;
            b.begin = place.offset;
            b.end = b.begin + static_cast<std::size_t>(seg.chunk_rows) * place.desc.row_bytes();
            b.touch(static_cast<int>(k));
          } else {
            CHECK(place.where != ValueStorage::nowhere);
          }
        }
        if (step.phase == Phase::reduce) {
          const std::size_t stride = (p_.partitions[at(step.node)].partial_bytes + 63) / 64 * 64;
          Block b{n.name + " partial", p_.partial_offset[at(step.node)], 0};
          b.end = b.begin + stride * static_cast<std::size_t>(p_.shards);
          b.touch(static_cast<int>(s));
          CHECK(b.begin % 64 == 0);
          CHECK(b.end <= p_.activation_bytes);
          partials.push_back(b);
        }
      }
      std::vector<Block> here;
      for (auto& [v, b] : mine) {
        CHECK(b.begin % 64 == 0);
        CHECK(b.end <= p_.scratch_bytes);
        here.push_back(b);
      }
      CHECK(overlaps(here) == 0);
    }
    std::vector<Block> blocks = partials;
    for (std::size_t v = 0; v < values.size(); ++v) {
      if (p_.values[v].where != ValueStorage::activation) continue;
      Block b = values[v];
      const auto id = static_cast<ValueId>(v);
      b.name = g_[id].name;
      b.begin = p_.values[v].offset;
      b.end = b.begin + p_.values[v].desc.bytes();
      if (keep_all_ || id == g_.logits || id == g_.metrics) b.last = static_cast<int>(p_.segments.size());
      CHECK(b.begin % 64 == 0);
      CHECK(b.end <= p_.activation_bytes);
      blocks.push_back(b);
    }
    CHECK(overlaps(blocks) == 0);
    if (keep_all_)
      for (std::size_t v = 0; v < g_.values.size(); ++v) CHECK(p_.values[v].where != ValueStorage::scratch);
    CHECK(p_.values[at(g_.logits)].where == ValueStorage::activation);
    CHECK(p_.values[at(g_.metrics)].where == ValueStorage::activation);
  }

  // Checks that slices are in the order in which their gradients become final, and that `ready` counts the final ones.
  void ready() {
    if (!p_.training) return;
    std::map<std::string, int> final_in;  // the last segment of each node that computes the gradient
    for (std::size_t s = 0; s < p_.segments.size(); ++s)
      for (const Step& step : p_.segments[s].steps)
        for (ValueId v : g_.nodes[at(step.node)].outputs)
          if (g_[v].storage == Storage::gradient) final_in[g_[v].name] = static_cast<int>(s);
    std::size_t trained = 0;
    int before = -1;
    for (const Slice& s : parameters_.slices) {
      if (!s.trainable) continue;
      CHECK(&s == &parameters_.slices[trained]);  // trainable slices are before all other slices
      ++trained;
      REQUIRE(final_in.count(s.name) == 1);
      CHECK(final_in[s.name] >= before);
      before = final_in[s.name];
    }
    CHECK(trained == final_in.size());
    std::size_t most = 0;
    for (std::size_t s = 0; s < p_.segments.size(); ++s) {
      std::size_t expected = 0;
      while (expected < trained && final_in[parameters_.slices[expected].name] <= static_cast<int>(s)) ++expected;
      CHECK(p_.segments[s].ready == expected);
      most = std::max(most, p_.segments[s].ready);
    }
    CHECK(most == trained);
  }

  const Graph& g_;
  const Plan& p_;
  const ArenaLayout& parameters_;
  bool keep_all_;
  std::vector<int> made_;  // for each value, the segment after which it is complete
};

}  // namespace tutti::testing
