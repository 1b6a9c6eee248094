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

// A program that the launcher started and listens to.
class Child {
 public:
  using Sink = std::function<void(std::string_view line)>;

  // Throws UsageError if the program cannot be started.
  Child(Start start, bool with_input);

  [[nodiscard]] bool closed() const noexcept { return exited_ && !open(0) && !open(1); }
  [[nodiscard]] bool exited() const noexcept { return exited_; }
  [[nodiscard]] bool open(std::size_t stream) const noexcept { return pipes_[stream].get() >= 0; }
  [[nodiscard]] int fd(std::size_t stream) const noexcept { return pipes_[stream].get(); }
  // 128 + number after a signal.
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
  // Whether the program has just ended, or its pipes have just closed after it.
  void look(const Sink& out, const Sink& err);

  // Reads what there is, without waiting.
  void poll_and_read(const Sink& out, const Sink& err);

  // Gives up what it has not said yet.
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

// The agent of one host, over ssh or on this one.
struct Link {
  Link(Plan::Site where, const Options& o);
  [[nodiscard]] bool has(const std::string& name) const;
  // Gives the connection up.
  void cut();
  void say(const std::string& line) { child.input().put(line + "\n"); }
  [[nodiscard]] const std::string& host() const noexcept { return site.host.name; }
  // So many seconds after it was told to stop.
  void cut_off(double since);

  Plan::Site site;
  Child child;
  bool hello = false, ready = false, bye = false, refused = false, settled = false, lost = false;
  std::string errors;  // what it said before hello
  Clock::time_point began = Clock::now(), heard = began;
};

// What is said of a host that is gone, with its processes, of those that have not ended, and where they were.
[[nodiscard]] Problem lost_host(const Link& l, const std::map<std::string, const Link*>& unended,
                                const ProgressBoard& board, const std::string& how);

}  // namespace tutti::launch
