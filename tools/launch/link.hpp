// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "commands.hpp"
#include "plan.hpp"
#include "process.hpp"
#include "progress_board.hpp"
#include "wire.hpp"

namespace tutti::launch {

// A program that the launcher started and listens to.
class Child {
 public:
  using Sink = std::function<void(std::string_view line)>;

  // Throws UsageError if the program cannot be started.
  Child(Start start, bool with_input) {
    Pipe out = make_pipe(), err = make_pipe(), in;
    if (with_input) {
      in = make_pipe();
      start.in = in.read.get();
      ::fcntl(in.write.get(), F_SETFL, O_NONBLOCK);
    }
    start.out = out.write.get();
    start.err = err.write.get();
    const Started started = start_process(start);
    if (started.error != 0)
      fail<UsageError>(
          "command line", "the program " + start.argv[0], error_text(started.error),
          start.argv[0] == "mpirun" ? "Debian: apt-get install openmpi-bin" : "Debian: apt-get install openssh-client");
    pid_ = started.pid;
    pipes_[0] = std::move(out.read);
    pipes_[1] = std::move(err.read);
    in_ = std::move(in.write);
    input_ = OutputQueue(in_.get());
  }

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
  void close_input() {
    input_.close();
    in_ = io::Descriptor();
  }
  void signal(int number) const {
    if (!exited_) ::kill(-pid_, number);
  }

  void read(std::size_t stream, const Sink& sink) {
    std::string bytes;
    const ReadResult result = read_some(pipes_[stream].get(), bytes);
    if (result == ReadResult::bytes) lines_[stream].feed(bytes, sink);
    if (result == ReadResult::end) finish(stream, sink);
  }
  // Whether the program has just ended, or its pipes have just closed after it.
  void look(const Sink& out, const Sink& err) {
    if (!exited_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) {
      exited_ = true;
      exited_at_ = Clock::now();
    }
    // Something else holds its pipes, such as a master connection of ssh, and says nothing.
    if (exited_ && seconds_since(exited_at_) > 0.5)
      for (const std::size_t stream : {0U, 1U}) {
        pollfd waiting{fd(stream), POLLIN, 0};
        if (open(stream) && ::poll(&waiting, 1, 0) == 0) finish(stream, stream == 0 ? out : err);
      }
  }

  // Reads what there is, without waiting.
  void poll_and_read(const Sink& out, const Sink& err) {
    for (const std::size_t stream : {0U, 1U}) {
      pollfd waiting{fd(stream), POLLIN, 0};
      if (open(stream) && ::poll(&waiting, 1, 0) > 0) read(stream, stream == 0 ? out : err);
    }
    look(out, err);
  }

  // Gives up what it has not said yet.
  void hang_up() {
    if (exited_) pipes_ = {};
  }

 private:
  void finish(std::size_t stream, const Sink& sink) {
    lines_[stream].finish(sink);
    pipes_[stream] = io::Descriptor();
  }

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
  Link(Plan::Site where, const Options& o)
      : site(std::move(where)),
        child(start_on(site.host, site.here, o, {"--exec-ranks"}, site.order.joins && !o.elastic.accept_new_hosts),
              true) {
    child.input().put(encode(site.order));
  }
  [[nodiscard]] bool has(const std::string& name) const {
    return std::any_of(site.order.processes.begin(), site.order.processes.end(),
                       [&](const ProcessOrder& p) { return process_name(p.role, p.rank) == name; });
  }
  // Gives the connection up.
  void cut() {
    child.close_input();
    child.signal(SIGKILL);
    child.hang_up();
  }
  void say(const std::string& line) { child.input().put(line + "\n"); }
  [[nodiscard]] const std::string& host() const noexcept { return site.host.name; }
  // So many seconds after it was told to stop.
  void cut_off(double since) {
    if (since > 3 && !child.exited()) {
      lost = lost || hello;
      child.close_input();
      child.signal(SIGKILL);
    }
    if (since > 5) child.hang_up();
  }

  Plan::Site site;
  Child child;
  bool hello = false, ready = false, bye = false, refused = false, settled = false, lost = false;
  std::string errors;  // what it said before hello
  Clock::time_point began = Clock::now(), heard = began;
};

// What is said of a host that is gone, with its processes, of those that have not ended, and where they were.
[[nodiscard]] inline Problem lost_host(const Link& l, const std::map<std::string, const Link*>& unended,
                                       const ProgressBoard& board, const std::string& how) {
  std::string who;
  std::size_t shown = 0;
  for (const auto& [name, link] : unended) {
    if (link != &l) continue;
    if (++shown > 4) break;
    who += (who.empty() ? ", and with it " : "; ") + name + board.last_report(name);
  }
  return {static_cast<int>(ExitCode::communication),
          error_message("host " + l.host(), "its tutti-launch to stay", how + who, "")};
}

}  // namespace tutti::launch
