// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/io/base64.hpp>

#include "tools/launch/agent/rank_process.hpp"
#include "tools/launch/host/job_state.hpp"
#include "tools/launch/host/process.hpp"
#include "tools/launch/host/wire.hpp"

namespace tutti::launch {

// Processes have this time between SIGTERM and SIGKILL, so that a job stops within two seconds.
inline constexpr std::chrono::milliseconds stop_grace{1400};

// The agent's side of the connection to the launcher.
class LauncherLink {
 public:
  // partner: whether there is a launcher to which messages are sent; false under mpirun.
  explicit LauncherLink(double timeout, bool partner = true) : timeout_(timeout), partner_(partner) {}

  void say(const std::string& line) {
    if (partner_) out.put(control_mark + line + "\n");
  }
  [[nodiscard]] bool open() const noexcept { return open_; }
  // Returns whether the launcher sent no message for the whole time-out.
  [[nodiscard]] bool timed_out() const noexcept { return timed_out_; }
  // Reads once from standard input, which poll has reported as readable.
  template <class F>  // f(words of a line)
  void hear(F&& f) {
    std::string bytes;
    const ReadResult result = read_some(STDIN_FILENO, bytes);
    if (result == ReadResult::end) open_ = false;
    if (result != ReadResult::bytes) return;
    heard_ = looked_ = Clock::now();
    lines_.feed(bytes, [&](std::string_view line) { f(words_of(line)); });
  }
  // Closes the connection if no message arrived for the time-out: a disconnected launcher does not even send an end of
  // file. Time in which this process itself did not run, as on a paused machine, does not count.
  void check_silence();
  // Sends "alive" while the caller is busy with other work.
  void tell_alive();

  OutputQueue out{STDOUT_FILENO}, err{STDERR_FILENO};

 private:
  void say_alive();

  double timeout_;
  bool partner_, open_ = true, timed_out_ = false;
  Clock::time_point heard_ = Clock::now(), said_ = heard_, looked_ = heard_;
  LineSplitter lines_;
};

// Runs the processes of one host. Ends all of them if the launcher says so, if standard input closes, or if no message
// of the launcher arrives for the order's time-out. Under mpirun (`wrapper`) it runs one process, and ends it when
// mpirun sends a signal or ends.
class Agent {
 public:
  Agent(Order order, bool wrapper)
      : order_(std::move(order)), wrapper_(wrapper), link_(order_.host_timeout, !wrapper) {}

  // Runs until all processes have ended. Returns 0, or 5 if no message of the launcher arrived for the time-out. Under
  // mpirun it returns the exit code of the process.
  int run();

 private:
  // Reports a missing folder or program before any process is started.
  void check_order();
  void refuse(const std::string& what);

  void go();
  [[nodiscard]] bool start(RankProcess& p);

  void stop(const std::string& why);

  void obey(const std::vector<std::string>& words);
  // Passes the frames that a process has sent to the arbiter.
  void hand_on(RankProcess& p) {
    p.control().read([&](std::string_view frame) { link_.say("control " + p.name() + " " + io::to_base64(frame)); });
  }

  [[nodiscard]] bool parent_gone() const;

  void on_signal(int number);

  [[nodiscard]] bool finished() const;

  // Does one round of poll.
  void turn(const SignalQueue& signals);

  [[nodiscard]] OutputQueue& queue(std::size_t stream) { return stream == 0 ? link_.out : link_.err; }

  void look_after_processes(const SignalQueue& signals);

  // Ends descendants of the processes that left their process groups.
  static void end_adopted();

  // Cleans up after Open MPI's daemon in a new process. Normally the guard does this, but the guard has ended, and the
  // daemon waits for this process.
  void clean_behind_daemon();

  int finish();

  Order order_;
  bool wrapper_;
  LauncherLink link_;
  pid_t parent_ = 0;
  fs::path folder_;
  std::deque<RankProcess> processes_;
  std::vector<std::pair<RankProcess*, Clock::time_point>> again_;  // to be started again, and the time of the request
  bool began_ = false, stopping_ = false, refused_ = false;
  bool told_ = false;  // the launcher sent "stop"
  bool held_ = false;  // the launcher asked to hold the output back
  Clock::time_point kill_at_{}, relayed_{};
};

}  // namespace tutti::launch
