// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/elastic_member.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/windows/host_window.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/pause_tolerant_timer.hpp>
#include <tutti/strategy/state_replica.hpp>
#include <tutti/strategy/strategy.hpp>

namespace tutti {

// Trains in the generations of an elastic job. For each generation it makes a strategy by
//     std::unique_ptr<S> factory(const Assignment&, ControlChannel&, InterruptFlag&)
// S is an AllReduce, or another strategy with set_authority(). The flag ends it, also while its group is being formed.
// The arbiter of the channel decides the membership. When a member is lost, the channel's thread raises the flag.
// A process that begins a job is in the first generation after construction. A process that joins a running job is in
// no group until next_generation(), so that it loads its data while the other processes train.
template <class Factory>
class Elastic final : public ElasticMember {
  using Made = std::invoke_result_t<Factory&, const Assignment&, ControlChannel&, InterruptFlag&>;
  using S = typename Made::element_type;

 public:
  static constexpr StrategyTraits traits = [] {
    StrategyTraits t = S::traits;
    t.changes_members = true;
    return t;
  }();

  Elastic(std::shared_ptr<ControlChannel> channel, ElasticOptions options, Factory factory)
      : ElasticMember(std::move(channel), std::move(options),
                      "'tutti-launch --elastic -n N PROGRAM' starts N processes, and others can join them", true),
        factory_(std::move(factory)) {
    begin();
  }

  // ---- strategy interface ----
  // The rank is -1 outside a group: before the first generation, and after this process has left.
  [[nodiscard]] Membership membership() const {
    return group_ ? Membership{group_->rank(), group_->size(), now_.generation} : Membership{-1, 1, 0};
  }
  [[nodiscard]] int rank() const { return membership().rank; }
  [[nodiscard]] int size() const { return membership().size; }
  [[nodiscard]] std::string name() const { return group_ ? group_->name() : "elastic"; }
  // The gradients keep their memory in all generations: the process owns it and shares it with each group. A factory
  // may allocate it by allocate(bytes, group), where group is null outside a group.
  std::span<std::byte> allocate(std::size_t bytes) {
    if constexpr (requires(Factory & f, S * group) { f.allocate(bytes, group); })
      return factory_.allocate(bytes, group_.get());
    else
      return memory_in(windows_, of_process(), bytes);
  }
  void attach(const ArenaLayout& layout, const JobFacts& facts) {
    if (!group_) return;
    if constexpr (shares_windows)
      if (of_process() != nullptr) group_->share(windows_.empty() ? nullptr : windows_.back());
    try {
      group_->attach(layout, facts);
    } catch (const CommunicationError&) {
      flag_->raise("a failed comparison of the facts of the job");  // later messages would meet the rest of it
      throw;
    }
  }
  void synchronise(std::span<StateSpan> state) {
    if (!group_) return;
    if constexpr (requires(S & s, const StateReplica& own) { s.take_state(state, own); }) {
      StateReplica own{lacks_state_, copies_.empty() ? nullptr : copies_.back(), {}};
      if constexpr (shares_windows)
        if (own.window != nullptr) own.name = factory_.windows()->name_of(*own.window);
      took_state_ = group_->take_state(state, own);
    } else {
      group_->synchronise(state);
    }
    lacks_state_ = false;
  }
  Work reduce(const Piece& piece) { return group_ ? group_->reduce(piece) : Work{}; }
  void begin_step(std::int64_t step, bool runs_ahead) requires(S::traits.follows_steps) {
    if (group_) group_->begin_step(step, runs_ahead);
  }
  void settled() requires(S::traits.follows_steps) {
    if (group_) group_->settled();
  }
  [[nodiscard]] std::chrono::milliseconds deadline() const requires(S::traits.watches_ranks) {
    return group_ ? group_->deadline() : usual_deadline;
  }
  void wait_until(const std::function<bool()>& done, const std::string& what) requires(S::traits.watches_ranks) {
    if (group_)
      group_->wait_until(done, what);
    else
      poll(done, usual_deadline, what);
  }
  void finish() {
    if (group_) group_->finish();
  }
  void sum(std::span<double> values) {
    if (group_) group_->sum(values);
  }
  void abort(const std::string& reason, ExitCode code) noexcept {
    if (group_) group_->abort(reason, code);
  }
  [[nodiscard]] ElasticMembership* members() noexcept { return this; }

  // ---- membership interface (ElasticMembership) ----
  [[nodiscard]] bool joining() const override { return now_.generation == 0; }
  [[nodiscard]] bool lacks_state() const override { return lacks_state_; }
  [[nodiscard]] bool took_state() const override { return took_state_; }
  [[nodiscard]] std::span<std::byte> state_memory(std::size_t bytes) override {
    return memory_in(copies_, of_process(), bytes);
  }
  [[nodiscard]] Change change() override {
    const auto c = channel_->change();
    if (!c) return Change::none;
    return c->broken ? Change::broken : c->at_epoch ? Change::after_epoch : Change::after_step;
  }
  [[nodiscard]] bool next_generation(const LeaveReport& how) override {
    LeaveReport leaving = how;
    for (;;) {
      drop_group(leaving.broken);
      // The group may have failed because this process cannot reach a member. The arbiter must learn that first.
      // Otherwise the next generation would have the same members, and fail again.
      if constexpr (requires { factory_.await_peers(); })
        if (leaving.broken) factory_.await_peers();
      if (!next_assignment(leaving)) return false;
      try {
        form_group();
        if (channel_->await_group_ready(options_.rendezvous_timeout)) return true;
      } catch (const CommunicationError&) {
        // The arbiter names the lost process and makes another generation, or reports that it has removed this process.
      }
      leaving.broken = true;
    }
  }
  [[nodiscard]] bool has_authority() const override { return now_.id == now_.authority; }

 private:
  // Whether groups use windows of this process. If so, factory.writers(Assignment) returns the members that write into
  // a worker's window.
  static constexpr bool shares_windows = requires(S & s, const Factory& f, const std::shared_ptr<HostWindow>& w) {
    s.share(w);
    f.windows();
  };
  [[nodiscard]] ProcessWindows* of_process() const {
    if constexpr (shares_windows)
      return factory_.windows();
    else
      return nullptr;  // no memory is shared
  }
  // A lost member may be stopped or disconnected, still run, and write into memory that it has mapped. A member that
  // left in order after a complete step does not: its last writes were done before this process finished that step.
  void shut_out(const Assignment& next) {
    if constexpr (shares_windows) {
      if (windows_.empty() || now_.workers.empty()) return;
      const std::string& here = now_.workers[static_cast<std::size_t>(now_.rank)].host;
      const auto &writers = factory_.writers(now_), &left = factory_.writers(next);
      if (std::all_of(writers.begin(), writers.end(), [&](const control::Member& m) {
            return m.host != here || std::any_of(left.begin(), left.end(), [&](const auto& n) { return n.id == m.id; });
          }))
        return;
      std::string why;
      for (const auto& w : windows_) factory_.windows()->renew(*w, why);
    }
  }

  [[nodiscard]] bool next_assignment(const LeaveReport& leaving) {
    if (joining() && !enrolled_) {
      enrolled_ = true;
      channel_->ask_to_enrol(control::Role::worker, options_.start.rank, options_.start.host, options_.facts);
    } else if (!joining()) {
      channel_->report(leaving.step, leaving.broken, leaving.epoch_end, leaving.preparing);
    }
    // A process that waits for members to arrive waits as long as the arbiter does. Founders of a job wait only for the
    // rendezvous time-out.
    PauseTolerantTimer patience(options_.rendezvous_timeout);
    while (!channel_->await_assignment(PauseTolerantTimer::slice)) {
      if (founds() && patience.is_over()) break;  // the next line throws an error that names the missing processes
      // A released process has no lease. The loop then ends.
      if (!await_lease() && !channel_->released()) fail_without_lease();
    }
    auto next = channel_->next_assignment_unless_released(std::chrono::milliseconds(0));
    if (!next) return false;
    if (leaving.broken) shut_out(*next);
    now_ = *std::move(next);
    return true;
  }
  void form_group() {
    flag_ = group_flag_->renew();
    // The change may have been announced before the flag existed.
    if (const auto c = channel_->change()) group_flag_->raise(control::reason_of_end(*c));
    group_ = factory_(now_, *channel_, *flag_);
    int authority = 0;
    for (std::size_t r = 0; r < now_.workers.size(); ++r)
      if (now_.workers[r].id == now_.authority) authority = static_cast<int>(r);
    group_->set_authority(authority);
  }
  void drop_group(bool broken) {
    // If this rank leaves a group that failed, the other ranks leave it too.
    if (broken && flag_ != nullptr) flag_->raise("this rank leaves a group that failed");
    group_.reset();
  }

  Factory factory_;
  bool enrolled_ = false;
  bool lacks_state_ = options_.start.new_worker, took_state_ = true;
  std::vector<std::shared_ptr<HostWindow>> copies_;  // the last one holds the second copy of the state
  Made group_;                                       // destroyed before its flag
};

}  // namespace tutti
