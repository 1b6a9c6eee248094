// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "tools/launch/host/process.hpp"
#include "tools/launch/host/wire.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/job/plan.hpp"
#include "tools/launch/job/progress_board.hpp"

namespace tutti::launch {

// A program that the launcher started, and its output.
class Child {
 public:
  using Sink = std::function<void(std::string_view line)>;

  // Throws UsageError if the program cannot be started.
  Child(Start start, bool with_input);

  [[nodiscard]] bool closed() const noexcept { return exited_ && !open(0) && !open(1); }
  [[nodiscard]] bool exited() const noexcept { return exited_; }
  [[nodiscard]] bool open(std::size_t stream) const noexcept { return pipes_[stream].get() >= 0; }
  [[nodiscard]] int fd(std::size_t stream) const noexcept { return pipes_[stream].get(); }
  // Returns the exit code, or 128 + number after a signal.
  [[nodiscard]] int code() const noexcept {
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  [[nodiscard]] bool by_signal() const noexcept { return exited_ && WIFSIGNALED(status_); }
  [[nodiscard]] OutputQueue& input() noexcept { return input_; }
  void close_input();
  void signal(int number) const {
    if (!exited_) ::kill(-pid_, number);
  }

  void read(std::size_t stream, const Sink& sink);
  // Checks whether the program has ended. Closes its pipes 0.5 s after that, if they are empty.
  void look(const Sink& out, const Sink& err);

  // Reads what is available, without waiting.
  void poll_and_read(const Sink& out, const Sink& err);

  // Closes the pipes of a program that has ended, and ignores the rest of its output.
  void hang_up() {
    if (exited_) pipes_ = {};
  }

 private:
  void finish(std::size_t stream, const Sink& sink);

  pid_t pid_ = -1;
  int status_ = 0;
  bool exited_ = false;
  Clock::time_point exited_at_{};
  std::array<io::Descriptor, 2> pipes_;
  std::array<LineSplitter, 2> lines_;
  io::Descriptor in_;
  OutputQueue input_{-1};
};

// The agent of one host, over ssh or on this host.
struct Link {
  Link(Plan::Site where, const Options& o);
  [[nodiscard]] bool has(const std::string& name) const;
  // Closes the connection, and kills the agent or the ssh that runs it.
  void cut();
  void say(const std::string& line) { child.input().put(line + "\n"); }
  [[nodiscard]] const std::string& host() const noexcept { return site.host.name; }
  // Ends an agent that still runs: kills it 3 s after the command to stop, and closes its pipes after 5 s.
  void cut_off(double since);

  Plan::Site site;
  Child child;
  bool hello = false, ready = false, bye = false, refused = false, settled = false, lost = false;
  std::string errors;  // output before "hello"
  Clock::time_point began = Clock::now(), heard = began;
};

// Returns the problem of a lost host. It lists the host's processes that still ran, with their last positions.
[[nodiscard]] Problem lost_host(const Link& l, const std::map<std::string, const Link*>& unended,
                                const ProgressBoard& board, const std::string& how);

}  // namespace tutti::launch
