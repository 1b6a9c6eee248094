// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/plan/plan.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/train/detail/trainer/optimizer_state.hpp>
#include <tutti/train/detail/trainer/server_update.hpp>
#include <tutti/train/trainer.hpp>

// A server in this process that owns the weights, and workers that use it.
namespace tutti::test {

// Owns the weights that all workers in this process train.
class Owner {
 public:
  explicit Owner(std::function<void(const ServerPart&)> update) : update_(std::move(update)) {}

  // Gives the state of the first worker to all workers.
  void synchronise(std::span<StateSpan> state) {
    const std::lock_guard lock(mutex_);
    for (StateSpan& s : state) {
      auto& mine = state_[s.name];
      if (mine.empty())
        mine.assign(s.bytes.begin(), s.bytes.end());
      else
        std::memcpy(s.bytes.data(), mine.data(), mine.size());
    }
  }
  void pull(std::span<StateSpan> state) {
    const std::lock_guard lock(mutex_);
    for (StateSpan& s : state) std::memcpy(s.bytes.data(), state_.at(s.name).data(), s.bytes.size());
  }
  std::int64_t exchange(const Push& p) {
    const std::lock_guard lock(mutex_);
    if (p.index == 0) ++steps_;
    const std::size_t unit = size_of(p.dtype), at = p.begin * unit;
    ServerPart part{p.dtype,
                    p.begin,
                    p.begin + p.gradients.size() / unit,
                    state_.at("weights").data() + at,
                    {},
                    p.gradients.data(),
                    steps_ - 1};
    if (state_.contains("momentum.weights")) part.slots[0] = state_["momentum.weights"].data() + at;
    if (state_.contains("exp_avg.weights")) part.slots[0] = state_["exp_avg.weights"].data() + at;
    if (state_.contains("exp_avg_sq.weights")) part.slots[1] = state_["exp_avg_sq.weights"].data() + at;
    update_(part);
    std::memcpy(p.weights.data(), part.weights, p.weights.size());
    return steps_;
  }
  void read(const Push& p) {
    const std::lock_guard lock(mutex_);
    std::memcpy(p.weights.data(), state_.at("weights").data() + p.begin * size_of(p.dtype), p.weights.size());
  }
  std::atomic<std::int64_t> at_work{1};  // number of workers that still train
  [[nodiscard]] std::int64_t steps() {
    const std::lock_guard lock(mutex_);
    return steps_;
  }

 private:
  std::mutex mutex_;
  std::function<void(const ServerPart&)> update_;
  std::map<std::string, std::vector<std::byte>> state_;
  std::int64_t steps_ = 0;
};

class Worker {
 public:
  static constexpr StrategyTraits traits{.owns_weights = true};
  Worker(Owner& o, int rank, int size) : o_(o), rank_(rank), size_(size) {}
  [[nodiscard]] Membership membership() const { return {rank_, size_, 0}; }
  [[nodiscard]] std::string name() const { return "owner in this process"; }
  std::span<std::byte> allocate(std::size_t) { return {}; }
  void attach(const ArenaLayout&, const JobFacts&) {}
  void synchronise(std::span<StateSpan> state) {
    o_.synchronise(state);
    progress_ = o_.steps();
  }
  Work reduce(const Piece&) { fail<UsageError>("worker", "pushes", "a reduction"); }
  Work exchange(const Push& p) {
    ++pushes;
    progress_ = o_.exchange(p);
    return {};
  }
  void pull(std::span<StateSpan> state) {
    o_.pull(state);
    progress_ = o_.steps();
  }
  [[nodiscard]] std::int64_t progress() const { return progress_; }
  [[nodiscard]] std::int64_t others_at_work() const { return o_.at_work - (ended_ ? 0 : 1); }
  [[nodiscard]] bool came_late() const { return late; }
  void end() {
    ended_ = true;
    --o_.at_work;
  }
  void finish() {}
  void sum(std::span<double>) {}
  void abort(const std::string&, ExitCode) noexcept {}
  int pushes = 0;
  bool late = false;

 private:
  Owner& o_;
  int rank_, size_;
  bool ended_ = false;
  std::int64_t progress_ = 0;
};
static_assert(DistributedStrategy<Worker>);

// A worker that only reads the owner's state.
struct Reader : Worker {
  Reader(Owner& o, int rank, int size) : Worker(o, rank, size), owner(o) {}
  Work exchange(const Push& p) {
    owner.read(p);
    return {};
  }
  Owner& owner;
};
static_assert(DistributedStrategy<Reader>);

inline Graph net() {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {.relu = true});
  x = nn::conv_bn(b, "conv2", "bn2", x, {.out = 8, .stride = 2}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}
inline TrainerOptions options(AnyOptimizer optimizer) {
  TrainerOptions o;
  o.optimizer = std::move(optimizer);
  o.first_bucket_bytes = 1 << 8;
  o.bucket_bytes = 1 << 11;
  return o;
}
inline const Schedule rates = schedule::Poly(0.05, {.power = 2, .end = 0});

// Owns the weights of net() and updates them.
struct Server {
  Server(const TrainerOptions& o, std::int64_t steps_per_epoch, std::int64_t total, std::int64_t batch)
      : layout(parameter_layout(differentiate(fuse(net())), DType::f32)),
        update(backend, make_update_rules(layout, o, layout.slices.size()), o.loss_scale,
               [=](std::int64_t step) {
                 return rates(SchedulePoint{step, steps_per_epoch, total, batch, 1});
               }),
        owner(std::ref(update)) {}
  ReferenceBackend backend;
  ArenaLayout layout;
  ServerUpdate update;
  Owner owner;
};

inline std::vector<std::byte> state_of(Trainer& t) {
  t.commit();
  std::vector<std::byte> all;
  for (const bool optimizer : {false, true})
    for (const StateSpan& s : t.committed_tensors(optimizer)) all.insert(all.end(), s.bytes.begin(), s.bytes.end());
  return all;
}

inline constexpr std::int64_t samples = 96, batch = 12;
inline Loader loader(int rank = 0, int world = 1) {
  return Loader(Synthetic({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true}),
                {.placement = {batch, rank, world}, .seed = 9, .threads = 0});
}

}  // namespace tutti::test
