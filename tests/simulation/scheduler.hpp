// SPDX-License-Identifier: MIT
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "clock.hpp"
#include "context.hpp"
#include "random.hpp"

namespace tutti::simulation {

// A simulated process: some threads, clocks and descriptors.
struct Process {
  enum class State : std::uint8_t { running, exited, killed };

  int number = 0;
  std::string name{};
  State state = State::running;
  int code = 0;  // the exit code, or the signal that killed it
  Nanos ended_at = never;
  std::string error{};     // the last line that it wrote to its standard error
  Nanos paused_until = 0;  // no thread of it runs before
  Nanos slow_files = 0;    // the longest time that a use of a file takes
  Clocks clocks{};
  std::set<int> descriptors{};                                        // the open ones, simulated and of files
  int threads = 0;                                                    // that have not ended
  std::multimap<std::uint64_t, std::function<void()>> after_sends{};  // what happens after its n-th message
  std::uint64_t sends = 0;                                            // messages that it has sent

  [[nodiscard]] bool runs() const noexcept { return state == State::running; }
  void pause_until(Nanos time) { paused_until = std::max(paused_until, time); }
};

struct Thread {
  Thread(int n, Process& p) : number(n), process(&p) {}
  Thread(int n, Process& p, std::function<void()> body) : number(n), process(&p), context(std::move(body)) {}

  int number;
  Process* process;
  const void* waits_for = nullptr;  // the address of the object; null: the thread can run
  const char* what = "";            // kind of the object, for reports
  Moment deadline{};
  bool timed_out = false, ended = false;
  void* result = nullptr;
  Context context{};
};

// Runs the simulated threads one at a time, in an order that the seed determines, with a clock that goes on only by
// what they do and when all of them wait. The object exists for one schedule, in a process that then ends.
class Scheduler {
 public:
  // The calling thread becomes the first thread of the first process, the world.
  explicit Scheduler(std::uint64_t seed) : random_(seed, 1), noise_(seed, 2) {
    static constexpr std::uint64_t rates[] = {0, 2, 5, 20, 100};
    switches_ = rates[random_.below(std::size(rates))];
    spurious_ = random_.one_in(2) ? 50 : 0;
    running_ = &threads_.emplace_back(0, add_process("world"));
    running_->process->threads = 1;
    active_.push_back(running_);
    current_ = this;
  }
  ~Scheduler() { current_ = nullptr; }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Returns the scheduler of the running simulation, or null outside a simulation.
  [[nodiscard]] static Scheduler* current() noexcept { return current_; }

  [[nodiscard]] Nanos now() const noexcept { return now_; }
  [[nodiscard]] Thread& running() noexcept { return *running_; }
  [[nodiscard]] Process& process() noexcept { return *running_->process; }
  [[nodiscard]] const Thread& thread(int number) const { return threads_.at(static_cast<std::size_t>(number)); }
  [[nodiscard]] const std::deque<Process>& processes() const noexcept { return processes_; }
  [[nodiscard]] std::deque<Process>& processes() noexcept { return processes_; }
  // Random numbers for simulated devices, such as the delay of a message.
  [[nodiscard]] Random& noise() noexcept { return noise_; }

  // ---- threads ----
  // Starts a process whose first thread runs `main` and then ends the process with its result.
  Process& start_process(const std::string& name, std::function<int()> main) {
    Process& p = add_process(name);
    start_thread(p, [this, main = std::move(main)] { exit(main()); });
    note("starts", p);
    return p;
  }
  Thread& start_thread(Process& p, std::function<void()> body) {
    const int number = static_cast<int>(threads_.size());
    Thread& t = threads_.emplace_back(number, p, [this, body = std::move(body)] {
      body();
      end_thread(nullptr);
    });
    ++p.threads;
    active_.push_back(&t);
    return t;
  }
  // Ends the running thread.
  [[noreturn]] void end_thread(void* result) {
    running_->result = result;
    running_->ended = true;
    --running_->process->threads;
    std::erase(active_, running_);
    wake_all(running_);
    switch_away();
    std::abort();  // no one gives the baton to a thread that has ended
  }
  // Ends the running process, as exit() does.
  [[noreturn]] void exit(int code) {
    Process& p = process();
    note("exits", p, std::to_string(code));
    end_process(p, Process::State::exited, code);
    switch_away();
    std::abort();
  }
  // Ends a process at once, as SIGKILL does. If it is the running process, the call does not return.
  void kill(Process& p, int signal) {
    if (!p.runs()) return;
    note("is killed", p);
    end_process(p, Process::State::killed, signal);
    if (running_->process == &p) {
      switch_away();
      std::abort();
    }
  }
  // Called when a process ends. Its threads do not run any more.
  std::function<void(Process&)> on_end;

  // ---- waiting ----
  // Another thread may run now.
  void point() {
    now_ += 300;
    if (random_.one_in(switches_)) switch_away();
  }
  void spend(Nanos time) noexcept { now_ += time; }
  // Counts a message of the running process, after which a fault may happen. The call does not return if it ends the
  // process.
  void count_send() {
    Process& p = process();
    ++p.sends;
    while (!p.after_sends.empty() && p.after_sends.begin()->first <= p.sends) {
      const auto happens = std::move(p.after_sends.begin()->second);
      p.after_sends.erase(p.after_sends.begin());
      happens();
      if (p.paused_until > now_) switch_away();
    }
  }
  // Blocks until another thread wakes this address, or until the deadline. Returns false after the deadline.
  bool block(const void* address, const char* what, Moment until = {}) {
    Thread& t = *running_;
    t.waits_for = address;
    t.what = what;
    t.deadline = until;
    t.timed_out = false;
    switch_away();
    return !t.timed_out;
  }
  // Blocks for a time of the simulation. The clocks of the process have no influence.
  void sleep(Nanos time) {
    const Process& p = process();
    (void)block(running_, "sleep", {CLOCK_BOOTTIME, p.clocks.read(CLOCK_BOOTTIME, now_ + time)});
  }
  void wake_one(const void* address) {
    std::vector<Thread*> waiting;
    for (Thread* t : active_)
      if (t->waits_for == address) waiting.push_back(t);
    if (!waiting.empty()) waiting[random_.below(waiting.size())]->waits_for = nullptr;
  }
  void wake_all(const void* address) {
    for (Thread* t : active_)
      if (t->waits_for == address) t->waits_for = nullptr;
  }
  // Returns whether a wait may end without a reason, as POSIX allows.
  [[nodiscard]] bool wakes_spuriously() { return random_.one_in(spurious_); }

  // ---- the history ----
  // Adds a line. Two runs of a schedule have the same history.
  void note(const std::string& text) {
    const std::string line = time_text() + " " + text + "\n";
    for (const char c : line) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
    if (keeps_) history_ += line;
  }
  void note(const std::string& what, const Process& p, const std::string& more = "") {
    note(p.name + " " + what + (more.empty() ? "" : " " + more));
  }
  void keep_history() noexcept { keeps_ = true; }
  [[nodiscard]] const std::string& history() const noexcept { return history_; }
  // Returns a hash of the history and of each change of threads.
  [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }
  [[nodiscard]] std::uint64_t switches() const noexcept { return count_; }
  // Ends the simulation, because a check failed. Set it before the first thread starts.
  std::function<void(const std::string&)> on_failure;

  [[noreturn]] void fail(const std::string& why) {
    note("FAILED: " + why);
    on_failure(why);
    std::abort();
  }
  // Lists the threads and what each of them waits for.
  [[nodiscard]] std::string threads_text() const {
    std::string text;
    for (const Thread* t : active_)
      text += (text.empty() ? "" : ", ") + t->process->name + " thread " + std::to_string(t->number) +
              (t->waits_for != nullptr ? std::string(" waits: ") + t->what : " can run");
    return text;
  }

 private:
  Process& add_process(const std::string& name) {
    Process& p = processes_.emplace_back();
    p.number = static_cast<int>(processes_.size()) - 1;
    p.name = name;
    return p;
  }
  void end_process(Process& p, Process::State state, int code) {
    p.state = state;
    p.code = code;
    p.ended_at = now_;
    std::erase_if(active_, [&](const Thread* t) { return t->process == &p; });
    if (on_end) on_end(p);
  }
  [[nodiscard]] std::string time_text() const {
    const std::string us = std::to_string(now_ / 1000);
    std::string padded = us.size() < 7 ? std::string(7 - us.size(), '0') + us : us;
    return padded.insert(padded.size() - 6, ".");
  }

  // Runs another thread, or this one. Returns when this thread runs again.
  void switch_away() {
    Thread* const self = running_;
    Thread* const next = pick();
    if (next == self) return;
    running_ = next;
    ++count_;
    hash_ = (hash_ ^ (static_cast<std::uint64_t>(next->number) + static_cast<std::uint64_t>(now_))) * 0x100000001B3ULL;
    self->context.hand_over(next->context);
  }
  [[nodiscard]] Thread* pick() {
    if (count_ > limit) fail("the schedule does not end: " + threads_text());
    for (;;) {
      able_.clear();
      Nanos soonest = never;
      for (Thread* t : active_) {
        const Process& p = *t->process;
        Nanos at = 0;
        if (t->waits_for != nullptr) at = p.clocks.time_of(t->deadline.clock, t->deadline.shown);
        if (at == never) continue;
        at = std::max(at, p.paused_until);
        if (at > now_) {
          soonest = std::min(soonest, at);
          continue;
        }
        able_.push_back(t);
      }
      if (!able_.empty()) break;
      if (soonest == never) fail("all threads wait for each other: " + threads_text());
      now_ = soonest;
    }
    Thread* const t = able_[random_.below(able_.size())];
    if (t->waits_for != nullptr) {
      t->waits_for = nullptr;
      t->timed_out = true;
    }
    return t;
  }

  static constexpr std::uint64_t limit = 20'000'000;  // switches of a schedule
  inline static Scheduler* current_ = nullptr;

  Random random_, noise_;
  std::uint64_t switches_ = 0, spurious_ = 0, hash_ = 0xCBF29CE484222325ULL, count_ = 0;
  Nanos now_ = 0;
  std::deque<Process> processes_;
  std::deque<Thread> threads_;
  std::vector<Thread*> active_, able_;
  Thread* running_ = nullptr;
  bool keeps_ = false;
  std::string history_;
};

}  // namespace tutti::simulation
