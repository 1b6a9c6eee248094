// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/graph/plan.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// A model's weights in the forms that a backend's ops read (another type, another layout), made anew after each update.
template <Backend B>
class WeightPacks {
 public:
  // All ops that read a parameter packed read the same packed form.
  static constexpr bool once = requires { requires B::one_pack; };
  static constexpr bool together = PacksAtOnce<B>;

  explicit WeightPacks(B& backend) : b_(backend) {}

  [[nodiscard]] std::size_t bytes() const noexcept { return memory_.bytes(); }
  // Whether weights have changed since run().
  [[nodiscard]] bool stale() const noexcept { return stale_; }
  void set_stale(bool stale) noexcept { stale_ = stale; }
  // What captured runs that use the packed forms depend on.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }

  // Those of a training plan of `g`, described ahead, so that a step allocates nothing. `weights`: where the parameter
  // arena lies; states: what the backend prepared for each node.
  void describe(const Graph& g, const Plan& plan, const ArenaLayout& parameters, const Buffer<B>& weights,
                const std::vector<std::shared_ptr<void>>& states) {
    memory_ = Buffer<B>(b_, plan.packed_bytes);
    packs_ = plan.packs;
    pack_of_ = plan.pack_of;
    graph_ = &g;
    compute_ = plan.compute;
    const auto desc = [&](ValueId v) {
      return TensorDesc{g[v].shape, g[v].precision == Precision::master ? parameters.dtype : plan.compute};
    };
    calls_.clear();
    std::vector<PackTarget> targets;
    for (const Pack& k : packs_) {
      const Node& n = g.nodes[static_cast<std::size_t>(k.node)];
      const Slice& s = *parameters.find(g[k.parameter].name);
      CallOfPack c;
      for (ValueId v : n.inputs) c.desc.in.push_back(desc(v));
      for (ValueId v : n.outputs) c.desc.out.push_back(desc(v));
      c.desc.compute = plan.compute;
      c.desc.rows = 1;
      c.desc.state = states[static_cast<std::size_t>(k.node)].get();
      c.weights = {weights.at(s.offset * size_of(parameters.dtype)), parameters.dtype, s.shape};
      targets.push_back({c.weights, memory_.at(k.offset)});
      calls_.push_back(std::move(c));
    }
    if constexpr (together) table_ = b_.prepare_packs(compute_, targets);
    static std::atomic<std::uint64_t> last{0};
    id_ = ++last;
    stale_ = true;
  }

  // Packs what is stale.
  void run() {
    if (!std::exchange(stale_, false)) return;
    if constexpr (together) {
      if (table_) b_.pack_all(compute_, table_.get());
    } else {
      b_.parallel(static_cast<int>(packs_.size()), [&](int t, int) {
        const Pack& k = packs_[static_cast<std::size_t>(t)];
        const CallOfPack& c = calls_[static_cast<std::size_t>(t)];
        b_.pack(graph_->nodes[static_cast<std::size_t>(k.node)].op, c.desc, c.weights, memory_.at(k.offset));
      });
    }
  }

  // The packed weights that a node reads; null: it reads the parameters themselves.
  [[nodiscard]] std::byte* of(std::size_t node) const {
    if (packs_.empty() || pack_of_[node] < 0) return nullptr;
    return memory_.at(packs_[static_cast<std::size_t>(pack_of_[node])].offset);
  }

 private:
  struct CallOfPack {
    NodeDesc desc;
    TensorRef weights;
  };

  B& b_;
  Buffer<B> memory_;
  const Graph* graph_ = nullptr;
  DType compute_ = DType::f32;
  std::vector<Pack> packs_;
  std::vector<std::int32_t> pack_of_;  // per node
  std::vector<CallOfPack> calls_;      // per pack
  std::shared_ptr<void> table_;        // of all, where they are packed together
  std::uint64_t id_ = 0;
  bool stale_ = true;
};

}  // namespace tutti
