// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/elastic_member.hpp>
#include <tutti/cluster/step_assignments.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/pause_tolerant_timer.hpp>
#include <tutti/strategy/strategy.hpp>

namespace tutti {

// A worker of asynchronous servers in a job with changing workers. It connects once, independently of other workers: a
// generation changes its rank and the number of workers between two of its steps, and no worker waits for it. Server 0
// assigns the steps, so that another worker runs the steps that a worker leaves unfinished.
//     std::unique_ptr<S> form(const Assignment&, ControlChannel&, InterruptFlag&)
// makes the AsyncParameterServer; the flag ends it. A process that joins a running job is in no group until
// next_generation().
template <class Form>
class ElasticAsync final : public ElasticMember, private StepAssignments {
  using Made = std::invoke_result_t<Form&, const Assignment&, ControlChannel&, InterruptFlag&>;
  using S = typename Made::element_type;

 public:
  static constexpr StrategyTraits traits = [] {
    StrategyTraits t = S::traits;
    t.changes_members = true;
    return t;
  }();

  ElasticAsync(std::shared_ptr<ControlChannel> channel, ElasticOptions options, Form form)
      : ElasticMember(std::move(channel), std::move(options),
                      "'tutti-launch --elastic -n N -s M PROGRAM' starts workers and servers", false),
        form_(std::move(form)) {
    begin();
  }

  // ---- strategy interface; before the first generation, rank -1 and size 1 ----
  [[nodiscard]] Membership membership() const { return workers_ ? workers_->membership() : Membership{-1, 1, 0}; }
  [[nodiscard]] int rank() const { return membership().rank; }
  [[nodiscard]] int size() const { return membership().size; }
  [[nodiscard]] std::string name() const { return workers_ ? workers_->name() : "asynchronous parameter server"; }
  // A joining process gets its memory before it is connected.
  std::span<std::byte> allocate(std::size_t bytes) {
    return workers_ ? workers_->allocate(bytes) : memory_in(windows_, form_.windows(), bytes);
  }
  void attach(const ArenaLayout& layout, const JobFacts& facts) {
    if (!workers_) return;
    if (!windows_.empty() && !std::exchange(shared_, true)) (void)workers_->share(windows_.back());
    workers_->attach(layout, facts);
  }
  // Rank 0 may be lost before it has sent the initial state. The next rank 0 then throws CommunicationError, and sends
  // the state when its caller repeats the call.
  void synchronise(std::span<StateSpan> state) {
    if (!workers_) return;
    const bool first = rank() == 0;
    PauseTolerantTimer patience(10 * deadline());
    while (!first && !workers_->is_founder()) {
      if (patience.is_over())
        fail<CommunicationError>("parameter server", "the initial state", "no message from rank 0");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (change() == Change::none) continue;
      if (!next_generation({}))
        fail<CommunicationError>("elastic training", "to begin the job", "a release before the job began");
      if (rank() == 0)
        fail<CommunicationError>("parameter server", "the initial state", "the loss of the rank 0 that had to send it");
    }
    workers_->synchronise(state);
  }
  void pull(std::span<StateSpan> state) { workers_->pull(state); }
  [[nodiscard]] std::int64_t others_at_work() {
    (void)workers_->is_founder();  // as a result, each server reports its progress
    return workers_->others_at_work();
  }
  [[nodiscard]] bool came_late() const noexcept { return false; }
  [[nodiscard]] std::int64_t progress() const { return workers_ ? workers_->progress() : 0; }
  Work reduce(const Piece& piece) { return workers_ ? workers_->reduce(piece) : Work{}; }
  Work exchange(const Push& push) { return workers_->exchange(push); }
  void begin_step(std::int64_t step, bool runs_ahead) {
    if (workers_) workers_->begin_step(step, runs_ahead);
  }
  void settled() {}
  void finish() {
    if (workers_) workers_->finish();
  }
  void sum(std::span<double> values) {
    if (workers_) workers_->sum(values);
  }
  [[nodiscard]] std::chrono::milliseconds deadline() const { return workers_ ? workers_->deadline() : usual_deadline; }
  void wait_until(const std::function<bool()>& done, const std::string& what) { poll(done, deadline(), what); }
  void abort(const std::string& reason, ExitCode code) noexcept {
    if (workers_) workers_->abort(reason, code);
  }
  [[nodiscard]] ElasticMembership* members() noexcept { return this; }

  // ---- membership interface (ElasticMembership) ----
  [[nodiscard]] StepAssignments* step_assignments() override { return this; }
  [[nodiscard]] bool joining() const override { return workers_ == nullptr; }
  [[nodiscard]] Change change() override {
    return channel_->await_assignment(std::chrono::milliseconds(0)) ? Change::after_step : Change::none;
  }
  [[nodiscard]] bool next_generation(const LeaveReport&) override {
    if (joining() && !join()) return false;
    while (channel_->await_assignment(std::chrono::milliseconds(0))) {
      auto next = channel_->next_assignment_unless_released(std::chrono::milliseconds(0));
      if (!next) return false;
      now_ = *std::move(next);
    }
    workers_->set_place({now_.rank, static_cast<int>(now_.workers.size()), now_.generation});
    channel_->report_group_ready();
    return true;
  }
  // The servers have the state.
  [[nodiscard]] bool has_authority() const override { return false; }

 private:
  static constexpr const char* founders_key = "ps/founders";

  // Enters the first generation and connects to the servers. Returns false if this process is released before that.
  [[nodiscard]] bool join() {
    form_.introduce(options_.start, *channel_);
    channel_->ask_to_enrol(control::Role::worker, options_.start.rank, options_.start.host, options_.facts);
    PauseTolerantTimer patience(options_.rendezvous_timeout);
    const bool founder = founds();
    while (!channel_->await_assignment(PauseTolerantTimer::slice))
      if (founder && patience.is_over()) break;  // the next line throws an error that names the missing processes
    auto first = channel_->next_assignment_unless_released(std::chrono::milliseconds(0));
    if (!first) return false;
    now_ = *std::move(first);
    if (founder) {
      founders_ = options_.start.size;
      channel_->publish(founders_key, std::to_string(founders_));
    } else {
      founders_ = static_cast<int>(
          detail::number_between(channel_->lookup(founders_key, options_.rendezvous_timeout), 1, 1 << 20)
              .value_or(options_.start.size));
    }
    workers_ = form_(now_, *channel_, *flag_);
    return true;
  }

  void ask(std::int64_t limit) override { workers_->ask_step(limit); }
  [[nodiscard]] std::optional<Reply> take(bool wait) override { return workers_->take_step(wait); }
  void complete(std::int64_t number) override { workers_->did_step(number); }
  void end_all() override { workers_->did_step(-1); }
  [[nodiscard]] int founders() const override { return founders_; }
  [[nodiscard]] bool is_founder() const override { return !options_.start.new_worker; }
  [[nodiscard]] int number() const override { return options_.start.rank; }

  Form form_;
  int founders_ = 1;
  bool shared_ = false;  // the memory that was allocated before the connection
  Made workers_;         // destroyed before its flag
};

}  // namespace tutti
