// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti::testing {

// An AllReduce that interrupts the rank's communicator in one step. `piece`: the piece at which it does so, from 0. The
// number of pieces: after the step. -1: before the step. -2: before the step, and the rank throws an error itself.
template <class C>
class Breaking {
 public:
  static constexpr StrategyTraits traits = AllReduce<C>::traits;
  // step: the step of the job, from 1; 0: never interrupts.
  Breaking(C& communicator, std::int64_t step, int piece)
      : c_(communicator), s_(communicator), at_step_(step), at_piece_(piece) {}

  [[nodiscard]] Membership membership() const { return s_.membership(); }
  [[nodiscard]] std::string name() const { return s_.name(); }
  std::span<std::byte> allocate(std::size_t n) { return s_.allocate(n); }
  void attach(const ArenaLayout& l, const JobFacts& f) { s_.attach(l, f); }
  void synchronise(std::span<StateSpan> state) { s_.synchronise(state); }
  void begin_step(std::int64_t step, bool runs_ahead) {
    step_ = step;
    pieces_ = 0;
    if (step_ == at_step_ && at_piece_ < 0) c_.interrupt();
    if (step_ == at_step_ && at_piece_ == -2) fail<CommunicationError>("step", "all ranks", "this one gives up");
    s_.begin_step(step, runs_ahead);
  }
  Work reduce(const Piece& piece) {
    if (step_ == at_step_ && pieces_ == at_piece_) c_.interrupt();
    ++pieces_;
    return s_.reduce(piece);
  }
  void finish() {
    if (step_ == at_step_ && pieces_ == at_piece_) c_.interrupt();
    s_.finish();
  }
  void settled() { s_.settled(); }
  [[nodiscard]] auto deadline() const { return s_.deadline(); }
  void wait_until(const std::function<bool()>& done, const std::string& what) { s_.wait_until(done, what); }
  void sum(std::span<double> v) { s_.sum(v); }
  void abort(const std::string& why, ExitCode code) noexcept { s_.abort(why, code); }

  // A device that still waits for absent ranks must stop.
  void let_go() {
    if constexpr (C::traits.reads_device_memory) c_.abort("a step broke", ExitCode::communication);
  }

  [[nodiscard]] int pieces() const noexcept { return pieces_; }  // number of pieces of the last step

 private:
  C& c_;
  AllReduce<C> s_;
  std::int64_t at_step_, step_ = 0;
  int at_piece_, pieces_ = 0;
};

// Returns the whole state that a run needs to continue, as bytes.
inline std::vector<std::byte> state_of(Trainer& t) {
  t.commit();
  std::vector<std::byte> all;
  const auto take = [&](std::span<const std::byte> bytes) { all.insert(all.end(), bytes.begin(), bytes.end()); };
  for (const bool optimizer : {false, true})
    for (const StateSpan& s : t.committed_tensors(optimizer)) take(s.bytes);
  take(std::as_bytes(std::span(&t.committed().counters(), 1)));
  return all;
}

// Returns a net that has running statistics.
inline Graph net_that_breaks() {
  Builder b(3, 6, 6);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {.relu = true});
  x = nn::conv_bn(b, "conv2", "bn2", x, {.out = 8, .stride = 2}, {});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}
inline TrainerOptions options_that_break() {
  TrainerOptions o;
  o.optimizer = Sgd{0.9, true};
  o.ema_decay = 0.9;
  o.clip_norm = 1;
  // Makes several buckets of a few slices.
  o.first_bucket_bytes = 1 << 7;
  o.bucket_bytes = 1 << 8;
  return o;
}
// Returns the images of a rank in a step.
inline std::vector<std::uint8_t> images_that_break(std::int64_t step, int rank, std::int64_t rows) {
  std::vector<std::uint8_t> images(static_cast<std::size_t>(rows * 3 * 6 * 6));
  Rng rng(7, Purpose::user, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(rank));
  for (auto& i : images) i = static_cast<std::uint8_t>(rng.below(256));
  return images;
}

// Runs `whole` complete steps and one step that breaks if `breaks`. Returns an error if the state after it is wrong, or
// an empty text.
template <class Strategy>
std::string break_a_step(Backend& backend, Strategy& strategy, int micro_batches, bool breaks, int whole = 3,
                         const TrainerOptions& o = options_that_break()) {
  Trainer t(backend, strategy, net_that_breaks(), o);
  const std::vector<std::int32_t> labels{0, 3, 1, 2};
  const int rank = strategy.membership().rank, ranks = strategy.membership().size;
  const auto step = [&](std::int64_t number) {
    const auto images = images_that_break(number, rank, 4);
    const BatchView one{images.data(), labels.data(), 4};
    const std::vector<BatchView> halves{{images.data(), labels.data(), 2},
                                        {images.data() + 2 * 108, labels.data() + 2, 2}};
    return t.step(micro_batches == 1 ? std::span(&one, 1) : std::span(halves), 4 * ranks, 0.1).wait();
  };
  for (int i = 1; i <= whole; ++i) step(i);
  const auto before = state_of(t);
  try {
    step(whole + 1);
    if (breaks) return "the step did not break";
    if (state_of(t) == before) return "a step that changes nothing";
    t.roll_back();
    return t.counters().step == whole + 1 ? "" : "a whole step was rolled back";
  } catch (const CommunicationError&) {
    if (!breaks) return "the step broke";
  }
  strategy.let_go();
  t.roll_back();
  if (t.counters().step != whole) return "step " + std::to_string(t.counters().step);
  return state_of(t) == before ? "" : "another state";
}

}  // namespace tutti::testing
