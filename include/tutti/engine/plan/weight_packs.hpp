// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/core/span_of.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/plan/plan.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// A model's weights in the forms that a backend's ops read (another type, another layout), made again after each
// update.
class WeightPacks {
 public:
  explicit WeightPacks(Backend& backend) : b_(backend) {}

  [[nodiscard]] std::size_t bytes() const noexcept { return memory_.bytes(); }
  // Returns whether weights have changed since run().
  [[nodiscard]] bool stale() const noexcept { return stale_; }
  void set_stale(bool stale) noexcept { stale_ = stale; }
  // Identifies the packed forms in captured runs that use them.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }

  // Describes the packs of a training plan of `g` in advance, so that a step does not allocate memory. `weights`: the
  // memory of the parameter arena; kernels: of the plan's nodes, prepared. Both outlive this object.
  void describe(const Graph& g, const Plan& plan, const ArenaLayout& parameters, const Buffer& weights,
                const std::vector<std::unique_ptr<Kernel>>& kernels) {
    memory_ = Buffer(b_.memory(), plan.packed_bytes);
    pack_of_ = plan.pack_of;
    packs_.clear();
    std::vector<PackTarget> targets;
    for (const Pack& k : plan.packs) {
      const Slice& s = *parameters.find(g[k.parameter].name);
      const TensorRef from{weights.at(s.offset * size_of(parameters.dtype)), parameters.dtype, s.shape};
      packs_.push_back({kernels[static_cast<std::size_t>(k.node)].get(), from, memory_.at(k.offset)});
      targets.push_back({from, memory_.at(k.offset)});
    }
    table_ = b_.pack_table(plan.compute, span_of(targets));
    static std::atomic<std::uint64_t> last{0};
    id_ = ++last;
    stale_ = true;
  }

  // Packs the weights if they are stale.
  void run() {
    if (!std::exchange(stale_, false)) return;
    if (table_) return table_->run();
    b_.parallel(static_cast<int>(packs_.size()), [&](int t, int) {
      const Packed& p = packs_[static_cast<std::size_t>(t)];
      p.kernel->pack(p.weights, p.to);
    });
  }

  // Returns the packed weights that a node reads; null: it reads the parameters themselves.
  [[nodiscard]] std::byte* of(std::size_t node) const {
    if (packs_.empty() || pack_of_[node] < 0) return nullptr;
    return packs_[static_cast<std::size_t>(pack_of_[node])].to;
  }

 private:
  struct Packed {
    Kernel* kernel;
    TensorRef weights;
    std::byte* to;
  };

  Backend& b_;
  Buffer memory_;
  std::vector<Packed> packs_;
  std::vector<std::int32_t> pack_of_;          // per node
  std::unique_ptr<Backend::PackTable> table_;  // for all, if they are packed together
  std::uint64_t id_ = 0;
  bool stale_ = true;
};

}  // namespace tutti
