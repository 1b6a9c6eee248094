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

// The end of stopping: SIGTERM, and SIGKILL so much later. Two seconds for all of it.
inline constexpr std::chrono::milliseconds stop_grace{1400};

// The agent's end of the conversation with the launcher.
class LauncherLink {
 public:
  // Without a `partner`, as under mpirun, it says nothing.
  explicit LauncherLink(double timeout, bool partner = true) : timeout_(timeout), partner_(partner) {}

  void say(const std::string& line) {
    if (partner_) out.put(control_mark + line + "\n");
  }
  [[nodiscard]] bool open() const noexcept { return open_; }
  // Whether the launcher was silent for the whole time-out.
  [[nodiscard]] bool timed_out() const noexcept { return timed_out_; }
  // Reads once from standard input, which poll said has something.
  template <class F>  // f(words)
  void hear(F&& f) {
    std::string bytes;
    const ReadResult result = read_some(STDIN_FILENO, bytes);
    if (result == ReadResult::end) open_ = false;
    if (result != ReadResult::bytes) return;
    heard_ = looked_ = Clock::now();
    lines_.feed(bytes, [&](std::string_view line) { f(words_of(line)); });
  }
  // A launcher that is cut off says nothing, and no end of file comes either. While this process stood still itself, as
  // on a machine that is paused, it could hear nobody.
  void check_silence();
  // While nothing else is done with it.
  void tell_alive();

  OutputQueue out{STDOUT_FILENO}, err{STDERR_FILENO};

 private:
  void say_alive();

  double timeout_;
  bool partner_, open_ = true, timed_out_ = false;
  Clock::time_point heard_ = Clock::now(), said_ = heard_, looked_ = heard_;
  LineSplitter lines_;
};

// Runs the processes of one host. Ends them all when the launcher says so, when its end of standard input closes, and
// when nothing has been heard of it for the time that the order gives. Under mpirun (`wrapper`) it runs one process,
// and mpirun's signals and death count instead.
class Agent {
 public:
  Agent(Order order, bool wrapper)
      : order_(std::move(order)), wrapper_(wrapper), link_(order_.host_timeout, !wrapper) {}

  // Returns the exit code: under mpirun that of the process, else 0, or 5 if the launcher was silent for the time-out.
  int run();

 private:
  // Says what would go wrong before anything runs.
  void check_order();
  void refuse(const std::string& what);

  void go();
  [[nodiscard]] bool start(RankProcess& p);

  void stop(const std::string& why);

  void obey(const std::vector<std::string>& words);
  // What a process has to say to the arbiter.
  void hand_on(RankProcess& p) {
    p.control().read([&](std::string_view frame) { link_.say("control " + p.name() + " " + io::to_base64(frame)); });
  }

  [[nodiscard]] bool parent_gone() const;

  void on_signal(int number);

  [[nodiscard]] bool finished() const;

  // One round of poll.
  void turn(const SignalQueue& signals);

  [[nodiscard]] OutputQueue& queue(std::size_t stream) { return stream == 0 ? link_.out : link_.err; }

  void look_after_processes(const SignalQueue& signals);

  // Ends what the processes left behind outside of their groups.
  static void end_adopted();

  // The guard, which cleans up behind Open MPI's daemon, has ended before; the daemon waits for this process, so
  // another one does it.
  void clean_behind_daemon();

  int finish();

  Order order_;
  bool wrapper_;
  LauncherLink link_;
  pid_t parent_ = 0;
  fs::path folder_;
  std::deque<RankProcess> processes_;
  std::vector<std::pair<RankProcess*, Clock::time_point>> again_;  // to be started again, as the launcher said then
  bool began_ = false, stopping_ = false, refused_ = false;
  bool told_ = false;  // to stop, by the launcher
  bool held_ = false;  // nobody takes the output for now
  Clock::time_point kill_at_{}, relayed_{};
};

}  // namespace tutti::launch
