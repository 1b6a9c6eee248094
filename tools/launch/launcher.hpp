// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/job/progress_report.hpp>

#include "ask.hpp"
#include "blame.hpp"
#include "commands.hpp"
#include "job_control.hpp"
#include "job_folder.hpp"
#include "job_output.hpp"
#include "link.hpp"
#include "mpi.hpp"
#include "mpirun_words.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "process.hpp"
#include "progress_board.hpp"
#include "ssh.hpp"
#include "wire.hpp"

namespace tutti::launch {

// Starts a job and stays until it has ended. Nothing runs before every host has said that it can; when a process fails
// all are stopped; when the launcher is gone its agents end theirs.
class Launcher {
 public:
  explicit Launcher(const Options& options) : o_(options), plan_(make_plan(options)) {}

  // The exit code.
  int run() {
    allow_many_descriptors();
    SignalQueue signals{SIGCHLD, SIGTERM, SIGINT, SIGHUP};
    try {
      if (!o_.sync_dir.empty()) {
        folder_.make(plan_, o_);
        sync_folder(plan_, o_, folder_.path(), signals);
      }
      settle_launcher(signals);
      if (o_.launcher == "mpi") folder_.make(plan_, o_);
      say(describe(plan_, o_));
      control_.emplace(o_, plan_);
      for (const auto& s : plan_.sites) links_.emplace_back(s, o_);
      while (!over()) turn(signals);
      end_lost_hosts(signals);
    } catch (...) {
      folder_.remove();
      throw;
    }
    folder_.remove();
    const int code = verdict();
    output_.flush(interrupted_ != 0);
    return code;
  }

 private:
  // Asks the program how its processes are to be started.
  void settle_launcher(const SignalQueue& signals) {
    const Asked asked = ask_program(plan_, o_, signals);
    require_answer(asked, plan_);
    if (asked.code < 0) say("warning: " + printable(o_.command[0]) + " did not answer how it is to be started");
    const int workers = plan_.first().order.workers;
    const int servers = servers_for(o_, asked.answer, workers);
    if (plan_.first().order.servers != servers) add_servers(plan_);
    if (o_.launcher != "mpi") o_.launcher = launcher_for(o_, asked.answer, static_cast<std::size_t>(workers));
    for (auto& s : plan_.sites) s.order.through_mpi = o_.launcher == "mpi";
  }

  void say(const std::string& text) { output_.say(text); }

  [[nodiscard]] bool over() const {
    return std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.child.closed(); }) &&
           (!mpirun_ || mpirun_->closed());
  }

  // ---- one round ----
  void turn(const SignalQueue& signals) {
    // Who does not read the job's output holds it up, but not the launcher's watch.
    const bool full = output_.full();
    if (full != held_) tell_all(full ? "hold" : "flow");
    held_ = full;
    std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}};
    output_.wait_for(fds);
    std::vector<Child*> children;
    for (Link& l : links_) children.push_back(&l.child);
    if (mpirun_) children.push_back(mpirun_.get());
    for (Child* c : children) {
      fds.push_back({c->input().size() > 0 && !c->input().broken() ? c->input().fd() : -1, POLLOUT, 0});
      // An agent is told to hold its output back instead: what else it says is to be heard in time.
      for (const std::size_t stream : {0U, 1U})
        fds.push_back({full && c == mpirun_.get() ? -1 : c->fd(stream), POLLIN, 0});
    }
    (void)::poll(fds.data(), fds.size(), 50);
    while (const int s = signals.next())
      if (s != SIGCHLD) interrupt(s);
    output_.send(&fds[1]);
    std::size_t at = 3;
    for (Link& l : links_) {
      if (fds[at].revents != 0) l.child.input().send();
      if (fds[at + 1].revents != 0) l.child.read(0, [&](std::string_view line) { hear(l, line); });
      if (fds[at + 2].revents != 0) l.child.read(1, [&](std::string_view line) { complain(l, line); });
      l.child.look([&](std::string_view line) { hear(l, line); }, [&](std::string_view line) { complain(l, line); });
      if (l.child.closed() && !l.settled) settle(l);
      at += 3;
    }
    if (mpirun_ && at + 2 < fds.size()) {
      const auto print = [&](std::string_view line) { output_.print(line); };
      const auto hear_mpirun = [&](std::string_view line) { mpirun_said_.hear(line, output_.err); };
      if (fds[at + 1].revents != 0) mpirun_->read(0, print);
      if (fds[at + 2].revents != 0) mpirun_->read(1, hear_mpirun);
      mpirun_->look(print, hear_mpirun);
    }
    watch();
  }

  // ---- what the agents say ----
  void hear(Link& l, std::string_view line) {
    l.heard = Clock::now();
    if (line.empty() || line.front() != control_mark) {
      // Before hello it is the login shell's greeting.
      if (l.hello) output_.print(line);
      return;
    }
    line.remove_prefix(1);
    const auto words = words_of(line);
    if (words.empty()) return;
    const auto number = [&](std::size_t i) {
      return i < words.size() ? std::strtoll(words[i].c_str(), nullptr, 10) : 0;
    };
    if (words[0] == "hello") {
      l.hello = true;
      if (number(1) != protocol)
        add_problem(l,
                    {static_cast<int>(ExitCode::usage),
                     error_message("host " + l.host(), "this version of tutti-launch", "another", "--remote-launch")});
    } else if (words[0] == "ready") {
      l.ready = true;
      go_when_all_are_ready();
    } else if (words[0] == "refuse") {
      l.refused = true;
      add_problem(l, {static_cast<int>(ExitCode::usage),
                      error_message("host " + l.host(), "what the job needs",
                                    printable(line.substr(std::min(line.size(), std::size_t{7}))),
                                    "--sync-dst-dir copies the working folder to every host")});
    } else if (words[0] == "bye") {
      l.bye = true;
    } else if (words.size() >= 3) {
      const std::string name = process_name(words[1], static_cast<int>(number(2)));
      if (words[0] == "start") {
        unended_[name] = &l;
        control_->started(name, l);
      } else if (words[0] == "control" && words.size() == 4) {
        if (!control_->hear(name, words[3]))
          say("warning: " + name + " on " + l.host() +
              " says what makes no sense on its channel; it is not listened to any more");
      } else if (words[0] == "progress" && words.size() == 8) {
        const RankProgress p{static_cast<std::uint64_t>(number(3)), static_cast<int>(number(4)),
                             static_cast<ProgressPhase>(number(5)), static_cast<std::uint64_t>(number(6))};
        board_.update(name, l.host(), p, words[7] == "T", Clock::now());
      } else if (words[0] == "end" && words.size() == 6) {
        ended(l, name, {words[3] == "signal", static_cast<int>(number(4)), words[5]});
      }
    }
  }
  void complain(Link& l, std::string_view line) {
    if (l.hello)
      output_.complain(line);
    else if (l.errors.size() < 65536)
      l.errors.append(line).append("\n");
  }

  void go_when_all_are_ready() {
    if (began_ || stopping_ || !std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.ready; }))
      return;
    began_ = true;
    if (o_.launcher != "mpi") return tell_all("go");
    try {
      mpirun_ = std::make_unique<Child>(mpirun_start(plan_, o_, folder_.path()), false);
    } catch (const Error& e) {
      problems_.push_back({e.exit_code(), e.what()});
      stop();
    }
  }
  void tell_all(const std::string& line) {
    for (Link& l : links_) l.say(line);
  }

  void ended(Link& l, const std::string& name, const End& end) {
    board_.ended(name);
    const Ending ending{name, l.host(), end};
    control_->ended(name, ending.good(), describe(end));
    if (may_start_again(ending)) {
      say("warning: " + name + " on " + l.host() + ": " + describe(end) + "; it is started again under its number, " +
          std::to_string(++restarts_) + " of " + count_text(static_cast<std::size_t>(o_.server_restarts), "restart"));
      return l.say("again " + name);
    }
    unended_.erase(name);
    endings_.push_back(ending);
    if (endings_.back().good() || stopping_ || interrupted_ != 0) return;
    failing_ = true;
    // Who lost another process may well be heard of before that one's own agent has noticed.
    const bool lost_another = !end.by_signal && end.code == static_cast<int>(ExitCode::communication);
    const auto wait = std::chrono::milliseconds(lost_another || end.why != "own" ? 200 : 0);
    const auto at = Clock::now() + wait;
    if (!stop_at_ || at < *stop_at_) stop_at_ = at;
  }

  [[nodiscard]] bool may_start_again(const Ending& e) const {
    return restarts_ < o_.server_restarts && e.name.starts_with("server") && !e.good() && e.end.why == "own" &&
           !stopping_ && !failing_ && interrupted_ == 0 && !workers_done_;
  }

  void add_problem(Link& l, Problem p) {
    problems_.push_back(std::move(p));
    l.settled = true;
    stop();
  }

  // An agent's connection has closed.
  void settle(Link& l) {
    l.settled = true;
    if (l.bye) return;
    if (!l.hello) {
      if (stopping_ && l.errors.empty()) return;
      problems_.push_back(connection_problem(l.site.host, l.site.here, l.child.code(), l.errors, remote_program(o_)));
    } else {
      l.lost = true;
      if (!stopping_ || l.child.code() == 255)
        problems_.push_back(lost_host(l, unended_, board_, l.site.here ? "it was killed" : "the connection was lost"));
    }
    stop();
  }

  // ---- stopping ----
  void interrupt(int signal) {
    if (interrupted_ != 0 || !began_) {
      if (interrupted_ == 0) interrupted_ = signal;
      stop();
      return;
    }
    interrupted_ = signal;
    interrupted_at_ = Clock::now();
    say(signal_text(signal) + ": the processes are told to stop; once more ends them at once");
    tell_all("signal " + std::to_string(signal == SIGHUP ? SIGTERM : signal));
  }
  void stop() {
    if (stopping_) return;
    stopping_ = true;
    stopped_at_ = Clock::now();
    tell_all("stop");
  }

  void watch() {
    const auto now = Clock::now();
    if (!stopping_ && stop_at_ && now >= *stop_at_) stop();
    if (seconds_since(spoke_) > std::min(2.0, o_.host_timeout / 4)) {
      spoke_ = now;
      tell_all("alive");
    }
    if (!stopping_) {
      for (Link& l : links_) {
        if (l.child.closed()) continue;
        if (!l.ready && seconds_since(began_at_) > o_.connect_timeout + 1) {
          add_problem(
              l, {static_cast<int>(ExitCode::communication),
                  error_message("host " + l.host(), "an answer within " + seconds_text(o_.connect_timeout), "none")});
        } else if (l.ready && seconds_since(l.heard) > o_.host_timeout) {
          l.lost = true;
          add_problem(l, lost_host(l, unended_, board_, "no word from it for " + seconds_text(o_.host_timeout)));
        }
      }
      if (interrupted_ != 0 && seconds_since(interrupted_at_) > o_.stop_timeout) stop();
      watch_progress(now);
      for (Problem& p : control_->lost(board_)) {
        problems_.push_back(std::move(p));
        stop();
      }
      watch_mpirun();
      watch_servers();
    }
    if (stopping_) {
      const double since = seconds_since(stopped_at_);
      if (mpirun_ && since > 0.1 && !mpi_told_) {
        mpi_told_ = true;
        mpirun_->signal(SIGTERM);
      }
      // Whoever has not answered by now is cut off.
      for (Link& l : links_) l.cut_off(since);
      if (mpirun_ && since > 4) mpirun_->signal(SIGKILL);
      if (mpirun_ && since > 5) mpirun_->hang_up();
    }
  }
  void watch_progress(Clock::time_point now) {
    if (interrupted_ != 0 || failing_) return;
    if (const auto stall = board_.new_stall(o_.stall_warning, now)) say("warning: " + board_.describe(*stall));
    const auto stall = o_.stall_deadline > 0 ? board_.stalled(o_.stall_deadline, now) : std::nullopt;
    if (!stall) return;
    problems_.push_back({static_cast<int>(ExitCode::communication),
                         error_message(stall->entry->name + " on " + stall->entry->host,
                                       "progress within " + seconds_text(o_.stall_deadline), board_.describe(*stall),
                                       "--stall-deadline sets the time")});
    stop();
  }

  // Once mpirun has ended, its guards may still have to tell how the processes did.
  void watch_mpirun() {
    if (!mpirun_) return;
    if (!failing_ && !mpirun_->exited() && mpirun_said_.quiet_for() > 1.5) mpirun_said_.repeat(output_.err);
    if (!mpirun_->closed()) return;
    if (!mpi_ended_) mpi_ended_ = Clock::now();
    if (unended_.empty() || seconds_since(*mpi_ended_) > 1) stop();
  }
  // Servers serve workers. One that has a channel is told when they are done, and saves what it has.
  void watch_servers() {
    if (plan_.first().order.servers == 0 || mpirun_ || endings_.empty()) return;
    const auto worker = [](const auto& e) { return e.first.starts_with("worker"); };
    if (std::any_of(unended_.begin(), unended_.end(), worker)) return;
    if (interrupted_ != 0 && !unended_.empty()) return;
    if (!workers_done_) workers_done_ = Clock::now();
    const double longest = unended_.empty() ? 0 : control_->any_open() ? o_.stop_timeout : 1;
    if (seconds_since(*workers_done_) >= longest) stop();
  }

  // ---- the end ----
  // A host whose connection broke may still run what it was given.
  void end_lost_hosts(const SignalQueue& signals) {
    std::vector<Host> hosts;
    for (const Link& l : links_)
      if (l.lost) hosts.push_back(l.site.host);
    for (const std::string& why : end_left_over(hosts, o_, plan_.job, signals)) say(why);
  }

  [[nodiscard]] int verdict() {
    constexpr int lost_another = static_cast<int>(ExitCode::communication);
    const Ending* blamed = culprit(endings_);
    const bool only_lost =
        blamed != nullptr && (blamed->end.why != "own" || exit_code_for(blamed->end) == lost_another);
    // A host that does not answer explains why others lost it.
    if (problems_.empty() && only_lost)
      for (const Link& l : links_)
        if (l.lost) problems_.push_back(lost_host(l, unended_, board_, "no answer"));
    if (problems_.empty() && interrupted_ != 0 && !(blamed != nullptr && failed_despite_signal(*blamed))) {
      say("ended by " + signal_text(interrupted_));
      return 128 + (interrupted_ == SIGINT ? SIGINT : SIGTERM);
    }
    if (problems_.empty() && blamed != nullptr)
      problems_.push_back(problem_of(*blamed, board_.last_report(blamed->name)));
    if (problems_.empty() && mpirun_ && mpirun_->code() != 0) {
      problems_.push_back(
          mpirun_said_.problem(*mpirun_, plan_, [&](const auto& name) { return board_.last_report(name); }));
      mpirun_said_.repeat(output_.err);
    }
    if (problems_.empty())
      if (auto ended = problem_of_outside(endings_)) problems_.push_back(*std::move(ended));
    output_.say(problems_);
    return problems_.empty() ? 0 : problems_.front().code;
  }

  Options o_;
  Plan plan_;
  JobFolder folder_;
  std::deque<Link> links_;
  std::unique_ptr<Child> mpirun_;
  JobOutput output_;
  ProgressBoard board_;
  std::optional<JobControl> control_;
  std::map<std::string, const Link*> unended_;
  std::vector<Ending> endings_;
  std::vector<Problem> problems_;
  bool began_ = false, stopping_ = false, failing_ = false, mpi_told_ = false, held_ = false;
  int interrupted_ = 0, restarts_ = 0;
  MpirunWords mpirun_said_;
  Clock::time_point began_at_ = Clock::now(), stopped_at_{}, spoke_{}, interrupted_at_{};
  std::optional<Clock::time_point> stop_at_, mpi_ended_, workers_done_;
};

}  // namespace tutti::launch
