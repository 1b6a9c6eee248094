// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "interposed_files.hpp"
#include "network.hpp"
#include "system.hpp"

// The functions through which the launcher starts programs, waits for their ends and gets signals. Include it once in a
// program, after interposed_files.hpp.
namespace tutti::simulation {

// The programs that simulated processes start. fork() returns in the parent only: a simulated process replaces the
// child and the program that it would run over ssh. Its pipes are the newest ones of the parent.
class Programs {
 public:
  // A program, as its parent sees it: the ssh that runs it. in, out: the program's own ends of its pipes, or -1.
  struct Program {
    Process* process = nullptr;
    Process* parent = nullptr;
    int in = -1, out = -1, parents_out = -1, parents_err = -1;
    int signal = 0;  // the parent has killed the ssh
  };
  // runs: the program, in a process of its own. with_input: the parent sends it messages. Returns the exit code.
  Programs(Scheduler& s, Network& n, std::function<int(Program&, bool with_input)> runs)
      : scheduler_(s), network_(n), runs_(std::move(runs)) {
    current_ = this;
    send_signal = [this](pid_t to, int signal) { return deliver(to, signal); };
  }
  ~Programs() { current_ = nullptr; }
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;
  [[nodiscard]] static Programs* current() noexcept { return current_; }
  [[nodiscard]] std::deque<Program>& all() noexcept { return all_; }

  [[nodiscard]] pid_t start() {
    Process& me = scheduler_.process();
    // The newest descriptors are pairs, each with the end that is read first: output, errors, perhaps input, and two
    // that only fork() needs.
    std::deque<int> mine;
    for (auto d = me.descriptors.rbegin(); d != me.descriptors.rend() && (mine.empty() || *d == mine.front() - 1); ++d)
      mine.push_front(*d);
    const bool with_input = mine.size() == 10;
    if (!with_input && mine.size() != 8) scheduler_.fail("a program is started with unknown descriptors");
    Program& p = all_.emplace_back();
    p.parent = &me;
    p.parents_out = mine[0];
    p.parents_err = mine[2];
    p.out = mine[1];
    p.in = with_input ? mine[4] : -1;
    p.process = &scheduler_.start_process("ssh " + std::to_string(all_.size()), [this, &p, with_input] {
      const int code = runs_(p, with_input);
      for (const int d : {p.in, p.out}) network_.close(d);
      return code;
    });
    for (const int d : {p.in, p.out})
      if (auto* const s = network_.find(d)) {
        me.descriptors.erase(d);
        s->owner = p.process;
        p.process->descriptors.insert(d);
      }
    return 1000 + p.process->number;
  }
  // Returns what waitpid() does.
  [[nodiscard]] pid_t wait(pid_t of, int* status, bool waits) {
    for (Program& p : all_) {
      if (1000 + p.process->number != of) continue;
      while (p.process->runs() && p.signal == 0) {
        if (!waits) return 0;
        scheduler_.sleep(ms);
      }
      // ssh exits with 255 if a signal ends the program or its machine.
      const bool killed = p.process->state == Process::State::killed;
      if (status != nullptr) *status = p.signal != 0 ? p.signal : (killed ? 255 : p.process->code) << 8;
      return of;
    }
    errno = ECHILD;
    return -1;
  }
  // Returns a descriptor from which the running process reads its signals.
  [[nodiscard]] int queue_of_signals() {
    Process& me = scheduler_.process();
    const auto ends = network_.connect(me, me, false);
    signals_[me.number] = ends.second;
    return network_.claim(ends.first);
  }
  void send_to_queue(const Process& to, int signal) {
    const auto at = signals_.find(to.number);
    auto* const s = at == signals_.end() ? nullptr : network_.find(at->second);
    if (s == nullptr) return;
    signalfd_siginfo info{};
    info.ssi_signo = static_cast<std::uint32_t>(signal);
    network_.send(*s, {reinterpret_cast<const char*>(&info), sizeof info});
  }
  void close_queue(const Process& of) {
    if (const auto at = signals_.find(of.number); at != signals_.end()) network_.close(at->second);
  }

 private:
  // Ends the ssh of a program: both ends of the connection learn of it.
  [[nodiscard]] bool deliver(pid_t to, int signal) {
    for (Program& p : all_) {
      if (1000 + p.process->number != (to < 0 ? -to : to)) continue;
      if (signal == 0 || p.signal != 0) return p.signal == 0 && p.process->runs();
      if (signal != SIGKILL && signal != SIGTERM) return true;
      p.signal = signal;
      for (const int d : {p.parents_out, p.parents_err, p.in}) network_.reset(d);
      return true;
    }
    return false;
  }

  inline static Programs* current_ = nullptr;
  Scheduler& scheduler_;
  Network& network_;
  std::function<int(Program&, bool)> runs_;
  std::deque<Program> all_;
  std::map<int, int> signals_;  // by the number of a process
};

// In a namespace, too, a function with this linkage is that of the C library.
extern "C" {

pid_t fork() noexcept {
  auto* programs = Programs::current();
  return programs == nullptr ? TUTTI_SYSTEM(fork)() : programs->start();
}
pid_t waitpid(pid_t of, int* status, int options) {
  auto* programs = Programs::current();
  return programs == nullptr ? TUTTI_SYSTEM(waitpid)(of, status, options)
                             : programs->wait(of, status, (options & WNOHANG) == 0);
}
int signalfd(int descriptor, const sigset_t* set, int flags) noexcept {
  auto* programs = Programs::current();
  return programs == nullptr ? TUTTI_SYSTEM(signalfd)(descriptor, set, flags) : programs->queue_of_signals();
}
ssize_t getrandom(void* to, std::size_t size, unsigned flags) {
  auto* s = Scheduler::current();
  if (s == nullptr) return TUTTI_SYSTEM(getrandom)(to, size, flags);
  for (std::size_t i = 0; i < size; ++i) static_cast<unsigned char*>(to)[i] = s->noise().below(256) & 255U;
  return static_cast<ssize_t>(size);
}

}  // extern "C"
}  // namespace tutti::simulation
