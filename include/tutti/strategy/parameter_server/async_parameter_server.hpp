// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/progress_report.hpp>
#include <tutti/cluster/step_assignments.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/server/step_assigner.hpp>
#include <tutti/strategy/parameter_server/server/weight_store.hpp>
#include <tutti/strategy/parameter_server/wire/two_bit.hpp>
#include <tutti/strategy/parameter_server/worker/worker.hpp>
#include <tutti/strategy/strategy.hpp>

namespace tutti {

// Asynchronous training by parameter servers. The servers own the weights and the optimizer state, and update them at
// each push; no worker waits for another one. If a worker dies, its last push may be applied in part or not at all; a
// step is not guaranteed to count exactly once. (Dean et al., "Large scale distributed deep networks", 2012.)
template <ps::Transport T>
class AsyncParameterServer {
 public:
  static constexpr StrategyTraits traits{.follows_steps = true, .watches_ranks = true, .owns_weights = true};

  AsyncParameterServer(std::unique_ptr<T> transport, const ps::WorkerOptions& options)
      : o_(options), place_{o_.rank, o_.workers, o_.generation}, c_(std::move(transport), options) {}

  [[nodiscard]] Membership membership() const { return place_; }
  // In a job with changing workers: sets the rank of this worker and the number of workers from now on.
  void set_place(const Membership& place) noexcept { place_ = place; }
  [[nodiscard]] std::string name() const { return "asynchronous " + c_.name(); }
  std::span<std::byte> allocate(std::size_t bytes) { return c_.allocate(bytes); }
  // Shares memory of this process that outlives the communicator, for the same use as memory from allocate().
  bool share(const std::shared_ptr<HostWindow>& window) { return c_.share(window); }

  void attach(const ArenaLayout& layout, const JobFacts& facts) {
    ranges_ = ps::ranges_of(layout, o_.servers, o_.big_array);
    elements_ = layout.count;
    kept_.forget();
    const std::string text = facts.text();
    if (text.size() > ps::max_data)
      fail<UsageError>(name(), {"facts of at most ", ps::max_data, " bytes"}, text.size());
    std::vector<Work> all;
    const std::vector<ps::ServerRange> to = each_server(text.size());
    for (const ps::ServerRange& s : to)
      all.push_back(c_.store(DType::u8, std::as_bytes(std::span(text)), ps::arena::facts, {&s, 1}, "job facts"));
    for (Work& w : all) w.wait();
  }

  // Rank 0 sends the initial state to the servers. If they already have a state, for example because this rank was
  // restarted, they keep theirs. All workers take the servers' state.
  void synchronise(std::span<StateSpan> state) {
    if (ranges_.empty()) return agree(state);
    arenas_.clear();
    std::uint32_t slot = ps::arena::slots, other = ps::arena::others;
    for (const StateSpan& s : state) {
      const bool averages = s.name.starts_with("ema.");
      arenas_.push_back({s.name, s.name == "weights"                         ? ps::arena::weights
                                 : s.name.ends_with(".weights") && !averages ? slot++
                                                                             : other++});
    }
    if (place_.rank == 0) {
      std::vector<Work> all;
      for (const StateSpan& s : state) all.push_back(c_.store(s.dtype, s.bytes, arena_of(s), where(s), s.name));
      for (Work& w : all) w.wait();
      const std::int64_t step = first_step(state);
      all.clear();
      const std::vector<ps::ServerRange> to = each_server(sizeof step);
      for (const ps::ServerRange& server : to)
        all.push_back(c_.store(DType::u8, std::as_bytes(std::span(&step, 1)), ps::arena::seal, {&server, 1}, "seal"));
      for (Work& w : all) w.wait();
    }
    pull(state);
  }
  void pull(std::span<StateSpan> state) {
    std::vector<Work> all;
    for (StateSpan& s : state) all.push_back(c_.fetch(s.dtype, s.bytes, arena_of(s), where(s), s.name));
    for (Work& w : all) w.wait();
  }

  // Returns whether rank 0 has sent the state that synchronise() fetches.
  [[nodiscard]] bool is_founder() {
    std::deque<Word> words;
    const auto servers = ranges_.empty() ? 1 : o_.servers;
    for (int s = 0; s < servers; ++s) {
      Word& w = words.emplace_back();
      w.where = {0, sizeof w.value, s};
      w.work = c_.fetch(DType::u8, w.bytes(), ps::arena::began, {&w.where, 1}, "begin", ranges_.empty() ? 1 : 0);
    }
    bool all = true;
    for (Word& w : words) {
      w.work.wait();
      all = all && w.value != 0;
    }
    return all;
  }

  // ---- steps that server 0 assigns, see StepAssignments ----
  void ask_step(std::int64_t limit) {
    Word& w = asked_.emplace_back();
    w.work =
        c_.fetch(DType::u8, w.bytes(), ps::arena::steps, {&w.where, 1}, "next step", static_cast<std::uint64_t>(limit));
  }
  [[nodiscard]] std::optional<StepAssignments::Reply> take_step(bool wait) {
    if (asked_.empty() || (!wait && !asked_.front().work.done())) return {};
    asked_.front().work.wait();
    const auto deal = ps::decode_assignment(asked_.front().value);
    asked_.pop_front();
    return deal;
  }
  // number: a finished step; a number below 0 ends the job for all workers.
  void did_step(std::int64_t number) {
    while (!said_.empty() && said_.front().work.done()) {
      said_.front().work.wait();  // throws the operation's error
      said_.pop_front();
    }
    Word& w = said_.emplace_back();
    w.value = number;
    w.work = c_.store(DType::u8, w.bytes(), ps::arena::steps, {&w.where, 1}, "step done");
    if (number < 0) w.work.wait();
  }

  [[nodiscard]] std::int64_t others_at_work() {
    static constexpr ps::ServerRange on_the_first{0, sizeof(std::int64_t), 0};
    std::int64_t others = 0;
    c_.fetch(DType::u8, std::as_writable_bytes(std::span(&others, 1)), ps::arena::at_work, {&on_the_first, 1}, "end")
        .wait();
    return others;
  }

  [[nodiscard]] bool came_late() const noexcept { return o_.late; }

  Work reduce(const Piece&) {
    fail<UsageError>(name(), "pushes", "a sum over workers that do not wait for each other");
  }
  Work exchange(const Push& p) {
    report_.begin(static_cast<std::uint64_t>(step_), static_cast<int>(p.index));
    last_bucket_ = static_cast<int>(p.index);
    return c_.apply(p.dtype, p.gradients, p.weights, p.begin * size_of(p.dtype), ranges_,
                    static_cast<std::uint64_t>(own_steps_), static_cast<std::uint32_t>(p.index),
                    "step " + std::to_string(step_) + " bucket " + std::to_string(p.index),
                    o_.threshold > 0 ? kept_.of(p.index, p.gradients.size() / sizeof(float)) : std::span<float>());
  }
  [[nodiscard]] std::int64_t progress() const { return static_cast<std::int64_t>(c_.progress()); }

  void begin_step(std::int64_t step, bool) {
    step_ = step;
    ++own_steps_;
  }
  void finish() { report_.end(static_cast<std::uint64_t>(step_), last_bucket_); }
  void settled() {}
  // Each worker keeps its own numbers.
  void sum(std::span<double>) { report_.idle(); }
  [[nodiscard]] std::chrono::milliseconds deadline() const { return c_.deadline(); }
  void wait_until(const std::function<bool()>& done, const std::string& what) { poll(done, deadline(), what); }
  void abort(const std::string& reason, ExitCode code) noexcept { c_.abort(reason, code); }

 private:
  // A word from or to server 0. Its address must not change during the operation.
  struct Word {
    std::int64_t value = 0;
    ps::ServerRange where{0, sizeof value, 0};
    Work work{};
    [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(&value, 1)); }
  };
  struct Arena {
    std::string name;
    std::uint32_t number;
  };
  // Before there is a model: sends rank 0's text to all workers.
  void agree(std::span<StateSpan> state) {
    static constexpr ps::ServerRange on_the_first{0, ps::max_data, 0};
    if (state.size() != 1) fail<UsageError>(name(), "one text before attach()", state.size());
    if (place_.rank == 0)
      c_.store(DType::u8, state[0].bytes, ps::arena::text, {&on_the_first, 1}, state[0].name).wait();
    c_.fetch(DType::u8, state[0].bytes, ps::arena::text, {&on_the_first, 1}, state[0].name).wait();
  }
  [[nodiscard]] std::uint32_t arena_of(const StateSpan& s) const {
    for (const Arena& a : arenas_)
      if (a.name == s.name) return a.number;
    fail<UsageError>(name(), "the name of state that was passed to synchronise()", s.name);
  }
  // State that is not divided is on server 0.
  [[nodiscard]] std::span<const ps::ServerRange> where(const StateSpan& s) const {
    static constexpr ps::ServerRange on_the_first{0, ~std::size_t{0} >> 8, 0};
    if (arena_of(s) >= ps::arena::others) return {&on_the_first, 1};
    if (s.bytes.size() != elements_ * size_of(s.dtype))
      fail<UsageError>(name(), "arenas with the layout that was passed to attach()",
                       {s.name, " of ", s.bytes.size(), " bytes"});
    return ranges_;
  }
  [[nodiscard]] std::vector<ps::ServerRange> each_server(std::size_t bytes) const {
    std::vector<ps::ServerRange> all(static_cast<std::size_t>(o_.servers));
    for (std::size_t s = 0; s < all.size(); ++s) all[s] = {0, bytes, static_cast<int>(s)};
    return all;
  }
  // Returns the step, which is the first counter.
  [[nodiscard]] static std::int64_t first_step(std::span<const StateSpan> state) {
    std::int64_t step = 0;
    for (const StateSpan& s : state)
      if (s.name == "counters" && s.bytes.size() >= sizeof step) std::memcpy(&step, s.bytes.data(), sizeof step);
    return step;
  }

  ps::WorkerOptions o_;
  Membership place_;
  std::deque<Word> asked_, said_;
  std::vector<ps::ServerRange> ranges_;
  std::vector<Arena> arenas_;
  std::size_t elements_ = 0;
  std::int64_t step_ = 0, own_steps_ = 0;
  int last_bucket_ = 0;
  ps::two_bit::Residuals kept_;
  ProgressReporter report_;
  ps::ServerCommunicator<T> c_;  // destroyed first: its thread reads the members above
};

}  // namespace tutti
