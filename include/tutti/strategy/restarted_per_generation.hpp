// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/strategy.hpp>

namespace tutti {

// During its lifetime, SIGUSR1 requests a change of members after the next step, and SIGUSR2 a change after the last
// step of the epoch. There is at most one object at a time.
class MembershipSignals {
 public:
  MembershipSignals() {
    static_assert(std::atomic<int>::is_always_lock_free);
    if (alive().exchange(true)) fail<UsageError>("MembershipSignals", "at most one object", "a second one");
    asked().store(0);
    struct sigaction action {};
    action.sa_handler = [](int number) { asked().fetch_or(number == SIGUSR1 ? step : epoch); };
    ::sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &action, &before_[i]);
  }
  ~MembershipSignals() {
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &before_[i], nullptr);
    alive().store(false);
  }
  MembershipSignals(const MembershipSignals&) = delete;
  MembershipSignals& operator=(const MembershipSignals&) = delete;

  [[nodiscard]] static ElasticMembership::Change change() noexcept {
    const int what = asked().load(std::memory_order_relaxed);
    using Change = ElasticMembership::Change;
    return (what & step) != 0 ? Change::after_step : (what & epoch) != 0 ? Change::after_epoch : Change::none;
  }

 private:
  static constexpr int step = 1, epoch = 2;
  static constexpr std::array<int, 2> signals{SIGUSR1, SIGUSR2};

  static std::atomic<int>& asked() noexcept {
    static constinit std::atomic<int> value{0};
    return value;
  }
  static std::atomic<bool>& alive() noexcept {
    static constinit std::atomic<bool> value{false};
    return value;
  }

  std::array<struct sigaction, signals.size()> before_{};
};

// A strategy whose groups cannot change, for example over MPI, in an elastic job. It lasts for one generation of the
// job. The launcher requests the end of the generation by MembershipSignals. All processes save and end after the same
// step, and new processes continue from there.
template <DistributedStrategy S>
class RestartedPerGeneration final : public S, public ElasticMembership {
 public:
  static constexpr StrategyTraits traits = [] {
    StrategyTraits t = S::traits;
    t.changes_members = true;
    return t;
  }();

  template <class... A>
  explicit RestartedPerGeneration(A&&... arguments) : S(std::forward<A>(arguments)...) {}

  // The processes see only this generation.
  [[nodiscard]] Membership membership() const { return {S::rank(), S::size(), 1}; }
  [[nodiscard]] ElasticMembership* members() noexcept { return this; }

  [[nodiscard]] bool restarts_processes() const override { return true; }
  [[nodiscard]] bool joining() const override { return false; }
  [[nodiscard]] Change change() override { return leaves_ ? Change::after_step : MembershipSignals::change(); }
  [[nodiscard]] bool next_generation(const LeaveReport&) override { return false; }
  [[nodiscard]] bool has_authority() const override { return S::rank() == 0; }
  void ask_to_leave() override { leaves_ = true; }
  // FitOptions::stop_requested reports a stop instead.
  [[nodiscard]] bool stop_requested() const override { return false; }
  // The launcher ends this process before processes of the next generation continue.
  [[nodiscard]] bool may_write() const override { return true; }
  void epoch_begins(std::int64_t) override {}

 private:
  MembershipSignals signals_;
  bool leaves_ = false;
};

}  // namespace tutti
