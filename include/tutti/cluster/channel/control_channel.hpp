// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/cluster/channel/assignment.hpp>
#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/channel/lease.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/comm/deadline.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// A process's channel to the arbiter of its job. Its own thread sends heartbeats: they show that the process lives
// while it computes. Processes also publish and look up texts in it to find each other; these appear in no argument,
// environment or log. Under tutti-launch it needs neither port nor key. Any thread may call the functions. Each throws
// CommunicationError after the arbiter has ended or removed this process, and UsageError if it refused this process.
class ControlChannel {
 public:
  // Opens the channel that tutti-launch gives to each process, once. Returns null if there is none, as under mpirun.
  [[nodiscard]] static std::unique_ptr<ControlChannel> open() {
    auto link = control::link_of_environment();
    return link == nullptr ? nullptr : std::make_unique<ControlChannel>(std::move(link));
  }
  explicit ControlChannel(std::unique_ptr<control::FrameLink> link) : link_(std::move(link)) {
    thread_ = std::thread([this] { run(); });
  }
  // Reports that the process has completed its work, unless the destructor runs because of an exception.
  ~ControlChannel() {
    try {
      if (std::uncaught_exceptions() == exceptions_) leave();
    } catch (const std::exception&) {
      // The arbiter is gone: there is no receiver for the message.
    }
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    link_->wake();
    thread_.join();
  }
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  // Asks for admission, with role and rank from the environment, and blocks until this process is in a generation. The
  // arbiter watches it from now on. Throws UsageError with the first of `facts` that differs from other processes.
  Assignment enrol(const LaunchEnvironment& e, const JobFacts& facts, std::chrono::milliseconds timeout) {
    return enrol(e.is_server() ? control::Role::server : control::Role::worker, e.rank, e.host, facts, timeout);
  }
  Assignment enrol(control::Role role, int place, const std::string& host, const JobFacts& facts,
                   std::chrono::milliseconds timeout) {
    ask_to_enrol(role, place, host, facts);
    return next_assignment(timeout);
  }
  // Asks for admission without waiting for a generation.
  void ask_to_enrol(control::Role role, int place, const std::string& host, const JobFacts& facts) {
    send(control::Enrol{role, place, host, facts.text()});
    {
      const std::lock_guard lock(mutex_);
      enrolled_ = true;
    }
    link_->wake();
  }

  // Blocks until there is an assignment that next_assignment() has not returned yet, or until this process is released.
  [[nodiscard]] bool await_assignment(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return wait(lock, Deadline(timeout),
                [&] { return released_ || (assignment_ && assignment_->generation > taken_); });
  }
  // Blocks until there is an assignment to a later generation than that of the last result, and returns it.
  Assignment next_assignment(std::chrono::milliseconds timeout) {
    if (auto a = next_assignment_unless_released(timeout)) return *std::move(a);
    fail<CommunicationError>("control channel", "to take part in the job", "a release from it");
  }
  // As next_assignment(), but returns no value if this process is released, as it or the launcher has requested.
  std::optional<Assignment> next_assignment_unless_released(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!wait(lock, Deadline(timeout), [&] { return released_ || (assignment_ && assignment_->generation > taken_); }))
      fail<CommunicationError>("control channel", {"all processes of the job within ", text_of(timeout)},
                               missing_.empty() ? "no answer of the arbiter" : "no message yet from " + missing_,
                               "check whether they have ended, or still load their data");
    if (!assignment_ || assignment_->generation <= taken_) return {};
    taken_ = assignment_->generation;
    return assignment_;
  }

  // ---- texts for all processes ----
  // Sets a key, of at most 256 bytes, to a value of at most 65536 bytes, which outlives this process. A key of a
  // generation (comm/key_store.hpp) is deleted with it. Throws CommunicationError if that generation has ended.
  void publish(const std::string& key, const std::string& value) {
    const auto request = next_request();
    send(control::Publish{request, key, value});
    if (!answer_to(request, Deadline(std::chrono::seconds(30)), key))
      fail<CommunicationError>("control channel", "an answer of the job's arbiter", "no answer within 30 s");
  }
  // Blocks until a key has a value and returns it. Throws CommunicationError if it gets no value within the time-out.
  [[nodiscard]] std::string lookup(const std::string& key, std::chrono::milliseconds timeout) {
    if (auto value = ask(key, true, Deadline(timeout))) return *std::move(value);
    fail<CommunicationError>("control channel", {"'", key, "' within ", text_of(timeout)}, "no value",
                             "check whether the process that publishes it still runs");
  }
  // As lookup(), but returns no value after the time-out, or once `stopped` is set (see wake_lookups()).
  [[nodiscard]] std::optional<std::string> lookup_unless(const std::string& key, const Deadline& deadline,
                                                         const std::atomic<bool>& stopped) {
    return ask(key, true, deadline, &stopped);
  }
  // Makes callers that wait in lookup_unless() check their `stopped`.
  void wake_lookups() {
    const std::lock_guard lock(mutex_);
    news_.notify_all();
  }
  // Returns the value of a key, or no value if it has not been published yet.
  [[nodiscard]] std::optional<std::string> find(const std::string& key) {
    return ask(key, false, Deadline(std::chrono::seconds(30)));
  }

  // Returns the next number of a key: 0 to the first caller, and a different number to each caller.
  [[nodiscard]] std::uint64_t next_number(const std::string& key) {
    const auto request = next_request();
    send(control::NextNumber{request, key});
    const auto answer = answer_to(request, Deadline(std::chrono::seconds(30)), key);
    if (!answer || !answer->found)
      fail<CommunicationError>("control channel", {"the next number of '", key, "' within 30 s"}, "no answer");
    return std::stoull(answer->value);
  }

  // ---- generations ----
  // Returns whether this process may write data that other processes read: its lease holds and it was not released.
  [[nodiscard]] bool may_write() const {
    const std::lock_guard lock(mutex_);
    return !released_ && lease_.holds(control::now());
  }
  // Blocks until this process may write: after a pause, an answer of the arbiter may be late. Returns false if it has
  // not answered within the rank time-out. Throws the error that ended the channel, such as a refusal.
  [[nodiscard]] bool await_lease() {
    std::unique_lock lock(mutex_);
    return wait(lock, Deadline(lease_.timeout()),
                [&] { return left_ || !enrolled_ || lease_.holds(control::now()); }) &&
           lease_.holds(control::now());
  }
  // Returns the known change of the generation that next_assignment() returned last, or no value.
  [[nodiscard]] std::optional<control::MembershipChange> change() const {
    const std::lock_guard lock(mutex_);
    return change_ && change_->generation >= taken_ ? change_ : std::nullopt;
  }
  // Calls f on the thread of the channel for each change, so f must not block. Calls f at once if a change is known
  // already. When this returns, no thread runs the function that was set before. f must not call on_change().
  void on_change(const std::function<void(const control::MembershipChange&)>& f) {
    std::optional<control::MembershipChange> known;
    {
      const std::lock_guard lock(mutex_);
      on_change_ = f;
      if (change_ && change_->generation >= taken_) known = change_;
    }
    { const std::lock_guard told(telling_); }
    if (f && known) f(*known);
  }
  // Calls f, which must not throw, on the channel's thread when the channel ends; at once if it has already ended.
  void on_end(std::function<void(const std::string& why)> f) {
    std::unique_lock lock(mutex_);
    on_end_ = std::move(f);
    if (error_) tell_end(lock);
  }
  // Reports that this process left the generation after `step`. broken: the work after `step` failed; epoch_end: `step`
  // was the last of an epoch; preparing: the process has no state yet that a joining process could take.
  void report(std::uint64_t step, bool broken, bool epoch_end, bool preparing = false) {
    send(control::Report{taken(), step, broken, epoch_end, preparing});
  }
  // Reports that this process waits in an operation and cannot reach these members; empty: the wait has ended.
  void report_unreachable(std::uint64_t operation, const std::vector<std::uint64_t>& members) {
    send(control::UnreachablePeers{taken(), operation, members});
  }
  // Reports the epoch that begins. Only rank 0 calls it.
  void epoch_begins(std::uint64_t epoch) { send(control::EpochStart{taken(), epoch}); }
  // Reports that this process has done its part in forming the group of the generation.
  void report_group_ready() { send(control::GroupReady{taken()}); }
  // As report_group_ready(), but blocks until all members have reported. Returns false if a member was lost before.
  [[nodiscard]] bool await_group_ready(std::chrono::milliseconds timeout) {
    const std::uint64_t generation = taken();
    report_group_ready();
    std::unique_lock lock(mutex_);
    const auto changed = [&] {
      return change_ && (change_->generation > generation || (change_->generation == generation && change_->broken));
    };
    if (!wait(lock, Deadline(timeout), [&] { return going_ >= generation || changed(); }))
      fail<CommunicationError>("control channel", {"a ready group within ", text_of(timeout)},
                               "reports of only some members");
    return going_ >= generation;
  }
  // Asks to leave when the next generation begins. This process works on until then.
  void ask_to_leave() { send(control::Leave{false}); }
  // Reports that this process has completed its work and leaves. The arbiter does not watch it any more.
  void leave() {
    {
      const std::lock_guard lock(mutex_);
      if (!enrolled_ || left_ || error_) return;
      left_ = true;
      lease_.end();
    }
    send(control::Leave{true});
  }
  // Returns whether the arbiter has released this process, as it or the launcher had requested.
  [[nodiscard]] bool released() const {
    const std::lock_guard lock(mutex_);
    return released_;
  }
  // Returns whether the job is to stop.
  [[nodiscard]] bool stop_requested() const {
    const std::lock_guard lock(mutex_);
    return stop_requested_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] static std::string text_of(std::chrono::milliseconds t) {
    return t.count() % 1000 == 0 ? std::to_string(t.count() / 1000) + " s" : std::to_string(t.count()) + " ms";
  }
  [[nodiscard]] std::uint64_t taken() const {
    const std::lock_guard lock(mutex_);
    return taken_;
  }
  [[nodiscard]] std::uint64_t next_request() {
    const std::lock_guard lock(mutex_);
    answers_[++requests_];
    return requests_;
  }
  void send(const control::Message& m) {
    const std::string bytes = control::encode(m);
    // No frame of another message may come between the frames of this one.
    const std::lock_guard lock(sending_);
    control::split_message(bytes, [&](std::string_view frame) { link_->send(frame); });
  }
  // Returns whether `done` became true before the time-out. Throws the error that ended the channel.
  template <class F>
  bool wait(std::unique_lock<std::mutex>& lock, const Deadline& deadline, F&& done) {
    for (;;) {
      if (done()) return true;
      if (error_) std::rethrow_exception(error_);
      if (deadline.is_over()) return false;
      news_.wait_for(lock, deadline.next_wait());
    }
  }
  [[nodiscard]] std::optional<control::Value> answer_to(std::uint64_t request, const Deadline& deadline,
                                                        const std::string& key,
                                                        const std::atomic<bool>* stopped = nullptr) {
    std::unique_lock lock(mutex_);
    const auto& answer = answers_[request];
    wait(lock, deadline, [&] { return answer.has_value() || (stopped != nullptr && *stopped); });
    const bool there = answer.has_value();
    auto value = answer;
    answers_.erase(request);
    lock.unlock();
    if (!there) send(control::Forget{request});
    if (value && !value->found && value->value == control::over)
      fail<CommunicationError>("control channel", {"to store '", key, "'"}, value->value);
    if (value && !value->found && !value->value.empty())
      fail<UsageError>("control channel", {"to store or find '", key, "'"}, value->value);
    return value;
  }
  [[nodiscard]] std::optional<std::string> ask(const std::string& key, bool wait, const Deadline& deadline,
                                               const std::atomic<bool>* stopped = nullptr) {
    const auto request = next_request();
    send(control::Lookup{request, key, wait});
    const auto answer = answer_to(request, deadline, key, stopped);
    return answer && answer->found ? std::optional(answer->value) : std::nullopt;
  }

  // ---- the thread ----
  void run() {
    try {
      auto next_beat = Clock::now();
      control::PauseTolerantTimer silence(control::Time::max());
      for (;;) {
        std::uint64_t beat = 0;
        Clock::duration pause = control::heartbeat_interval;
        {
          const std::lock_guard lock(mutex_);
          if (stopping_) return;
          if (enrolled_ && !left_) {
            const auto now = Clock::now();
            if (now >= next_beat) {
              beat = lease_.send_heartbeat(control::now());
              next_beat = now + every_;
            }
            pause = next_beat - now;
            if (std::exchange(answered_, false) && assignment_)
              silence = control::PauseTolerantTimer(assignment_->rank_timeout);
          }
        }
        if (silence.is_over(control::now())) link_->unanswered();
        if (beat != 0) send(control::Heartbeat{beat});
        const auto frame = link_->receive(std::chrono::ceil<std::chrono::milliseconds>(pause));
        if (!frame) continue;
        const auto bytes = assembler_.take(*frame, control::longest_message);
        if (bytes) hear(control::decode(*bytes));
      }
    } catch (...) {
      std::unique_lock lock(mutex_);
      error_ = std::current_exception();
      lease_.end();
      news_.notify_all();
      tell_end(lock);
    }
    news_.notify_all();
  }
  void tell_end(std::unique_lock<std::mutex>& lock) {
    const auto f = std::exchange(on_end_, nullptr);
    const std::exception_ptr error = error_;
    lock.unlock();
    if (!f) return;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      f(e.what());
    }
  }
  void hear(const control::Message& message) {
    std::function<void(const control::MembershipChange&)> tell;
    const std::lock_guard telling(telling_);
    {
      const std::lock_guard lock(mutex_);
      if (const auto* m = std::get_if<control::HeartbeatAck>(&message)) {
        const bool held = lease_.holds(control::now());
        lease_.acknowledge(m->number);
        answered_ = true;
        if (!held) news_.notify_all();
        return;
      }
      if (const auto* m = std::get_if<control::Waiting>(&message)) missing_ = m->missing;
      if (const auto* m = std::get_if<control::NewGeneration>(&message)) assign(*m);
      if (const auto* m = std::get_if<control::Start>(&message)) going_ = m->generation;
      if (const auto* m = std::get_if<control::Value>(&message))
        if (const auto at = answers_.find(m->request); at != answers_.end()) at->second = *m;
      if (std::holds_alternative<control::LeaveGranted>(message)) released_ = left_ = true;
      if (std::holds_alternative<control::Stop>(message)) stop_requested_ = true;
      if (const auto* m = std::get_if<control::Rejection>(&message)) {
        if (m->code == static_cast<int>(ExitCode::usage)) throw UsageError(m->reason);
        throw CommunicationError(m->reason);
      }
      if (const auto* m = std::get_if<control::MembershipChange>(&message)) {
        change_ = *m;
        tell = on_change_;
      }
    }
    news_.notify_all();
    if (tell) tell(std::get<control::MembershipChange>(message));
  }
  void assign(const control::NewGeneration& m) {
    assignment_ = assignment_of(m);
    lease_.set_timeout(assignment_->rank_timeout);
    answered_ = true;  // from now on the arbiter's silence counts, even if it never answers a heartbeat
    // Sends at least five heartbeats within the time-out, even if it is short.
    every_ = std::min<Clock::duration>(control::heartbeat_interval, assignment_->rank_timeout / 5);
  }

  std::unique_ptr<control::FrameLink> link_;
  std::mutex sending_;
  std::mutex telling_;  // locked before mutex_, and while on_change_ is called
  mutable std::mutex mutex_;
  std::condition_variable news_;
  control::MessageAssembler assembler_;  // used by the channel's thread only
  control::Lease lease_;
  std::optional<Assignment> assignment_;
  std::optional<control::MembershipChange> change_;
  std::function<void(const control::MembershipChange&)> on_change_;
  std::function<void(const std::string&)> on_end_;
  std::map<std::uint64_t, std::optional<control::Value>> answers_;
  std::uint64_t requests_ = 0, taken_ = 0, going_ = 0;
  std::string missing_;
  bool answered_ = false;  // set since the thread's last check: a heartbeat was answered, or an assignment was received
  bool enrolled_ = false, left_ = false, released_ = false, stop_requested_ = false, stopping_ = false;
  std::exception_ptr error_;
  Clock::duration every_ = control::heartbeat_interval;
  int exceptions_ = std::uncaught_exceptions();
  std::thread thread_;
};

}  // namespace tutti
