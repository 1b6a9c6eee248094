// SPDX-License-Identifier: MIT
#include "tools/launch/launcher.hpp"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/progress_report.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/io/descriptor_limit.hpp>

#include "tools/launch/cli/timeline.hpp"
#include "tools/launch/host/wire.hpp"
#include "tools/launch/job/blame.hpp"
#include "tools/launch/job/mpi.hpp"
#include "tools/launch/job/plan.hpp"
#include "tools/launch/resolve_options.hpp"

namespace tutti::launch {

int Launcher::run() {
  io::raise_descriptor_limit();  // each host needs descriptors
  SignalQueue signals{SIGCHLD, SIGTERM, SIGINT, SIGHUP};
  try {
    if (!o_.sync_dir.empty()) {
      folder_.make(plan_, o_);
      sync_folder(plan_, o_, folder_.path(), signals);
    }
    resolve_launcher(o_, plan_, signals, output_);
    if (o_.launcher == "mpi") folder_.make(plan_, o_);
    say(describe(plan_, o_));
    control_.emplace(o_, plan_);
    if (o_.elastic.on) begin_elastic();
    for (const auto& s : plan_.sites) links_.emplace_back(s, o_);
    while (!over()) turn(signals);
    end_elastic();
    end_lost_hosts(signals);
  } catch (...) {
    folder_.remove();
    throw;
  }
  folder_.remove();
  if (const std::string merged = merge_timelines(o_.command, plan_.first().order.job); !merged.empty()) say(merged);
  const int code = verdict();
  output_.flush(interrupted_ != 0);
  return code;
}

void Launcher::turn(const SignalQueue& signals) {
  // A slow reader of the job's output delays the job, but not the launcher's checks.
  const bool full = output_.full();
  if (full != held_) tell_all(full ? "hold" : "flow");
  held_ = full;
  std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}};
  output_.wait_for(fds);
  std::vector<Child*> children;
  for (Link& l : links_) children.push_back(&l.child);
  const std::size_t watched = children.size();
  if (mpirun_) children.push_back(mpirun_.get());
  for (Child* c : children) {
    fds.push_back({c->input().size() > 0 && !c->input().broken() ? c->input().fd() : -1, POLLOUT, 0});
    // Agents are asked to hold output back, because the other messages of an agent must arrive in time.
    for (const std::size_t stream : {0U, 1U})
      fds.push_back({full && c == mpirun_.get() ? -1 : c->fd(stream), POLLIN, 0});
  }
  (void)::poll(fds.data(), fds.size(), 50);
  while (const int s = signals.next())
    if (s != SIGCHLD) interrupt(s);
  output_.send(&fds[1]);
  std::size_t at = 3;
  for (Link& l : links_) {
    // Messages may add links that are not in this round's poll: reading from them would block.
    if (at >= 3 + 3 * watched) break;
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

void Launcher::hear(Link& l, std::string_view line) {
  l.heard = Clock::now();
  if (line.empty() || line.front() != control_mark) {
    // Before "hello", the output is the login shell's greeting.
    if (l.hello) output_.print(line);
    return;
  }
  line.remove_prefix(1);
  const auto words = words_of(line);
  if (words.empty()) return;
  const auto number = [&](std::size_t i) { return i < words.size() ? std::strtoll(words[i].c_str(), nullptr, 10) : 0; };
  if (words[0] == "hello") {
    l.hello = true;
    if (number(1) != protocol)
      add_problem(
          l, {static_cast<int>(ExitCode::usage),
              error_message("host " + l.host(), "this version of tutti-launch", "another version", "--remote-launch")});
  } else if (words[0] == "ready") {
    l.ready = true;
    if (l.site.order.joins && l.site.order.through_mpi) return add_workers(l);
    if (l.site.order.joins) return l.say("go");
    go_when_all_are_ready();
  } else if (words[0] == "refuse") {
    l.refused = true;
    const std::string what = printable(line.substr(std::min(line.size(), std::size_t{7})));
    // The reason may already be an error message.
    add_problem(l,
                {static_cast<int>(ExitCode::usage),
                 what.starts_with("[")
                     ? "[host " + l.host() + ": " + what.substr(1)
                     : error_message("host " + l.host(), "what the job needs", what,
                                     l.site.here ? "" : "copy the working folder to every host with --sync-dst-dir")});
  } else if (generations_ && words.size() <= 2 &&
             (words[0] == "members" || words[0] == "halted" || words[0] == "kept")) {
    if (words[0] == "halted") return generations_->halted(l);
    if (words.size() != 2) return;
    words[0] == "kept" ? generations_->kept(words[1]) : generations_->set(l, number(1));
  } else if (words[0] == "bye") {
    l.bye = true;
  } else if (words.size() >= 3) {
    const std::string name = process_name(words[1], static_cast<int>(number(2)));
    if (words[0] == "start") {
      unended_[name] = &l;
      board_.begun(name);
      control_->started(name, l);
      if (elastic_) elastic_->started(name, l);
    } else if (words[0] == "control" && words.size() == 4) {
      if (!control_->hear(name, words[3]))
        say("warning: " + name + " on " + l.host() +
            " sent an invalid frame on its channel; the channel is ignored from now on");
    } else if (words[0] == "progress" && words.size() == 7) {
      const RankProgress p{static_cast<std::uint64_t>(number(3)), static_cast<int>(number(4)),
                           static_cast<ProgressPhase>(number(5))};
      board_.update(name, l.host(), p, words[6] == "T", Clock::now());
      if (generations_) generations_->progress(p);
    } else if (words[0] == "end" && words.size() == 6) {
      ended(l, name, {words[3] == "signal", static_cast<int>(number(4)), words[5]});
    }
  }
}

void Launcher::complain(Link& l, std::string_view line) {
  if (l.hello)
    output_.complain(line);
  else if (l.errors.size() < 65536)
    l.errors.append(line).append("\n");
}

void Launcher::go_when_all_are_ready() {
  if (began_ || stopping_ || !std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.ready; })) return;
  began_ = true;
  if (generations_)
    for (Link& l : links_) add_workers(l);
  if (generations_) return;
  if (o_.launcher != "mpi") return tell_all("go");
  try {
    mpirun_ = std::make_unique<Child>(mpirun_start(plan_, o_, folder_.path()), false);
  } catch (const Error& e) {
    problems_.push_back({e.exit_code(), e.what()});
    stop();
  }
}

void Launcher::ended(Link& l, const std::string& name, const End& end) {
  board_.ended(name);
  ProcessExit ending{name, l.host(), end};
  if (generations_ && name.starts_with("worker")) {
    unended_.erase(name);
    return generations_->ended(ending);
  }
  const bool given_up = elastic_ && elastic_->has_given_up(name);
  const bool hopeless = elastic_ && elastic_->ends_job(ending);
  control_->ended(name, ending.good(), describe(end));
  if (may_start_again(ending)) {
    say("warning: " + name + " on " + l.host() + ": " + describe(end) + "; it is started again with the same number, " +
        std::to_string(++restarts_) + " of " + count_text(static_cast<std::size_t>(o_.server_restarts), "restart"));
    return l.say("again " + name);
  }
  unended_.erase(name);
  const bool fatal = elastic_ && fatal_news();
  ending.did_work = elastic_ && elastic_->did_work(name);
  const auto meaning =
      elastic_ && !fatal && !hopeless ? elastic_->meaning_of(ending, given_up) : Elastic::Meaning::fails;
  if (meaning == Elastic::Meaning::none) return;
  endings_.push_back(ending);
  if (meaning == Elastic::Meaning::noted) return;
  if (endings_.back().good() || stopping_ || interrupted_ != 0) return;
  failing_ = true;
  // The loss of another process may be reported before the end of that process, so this waits 200 ms for it.
  const bool lost_another = !end.by_signal && end.code == static_cast<int>(ExitCode::communication);
  const auto wait = std::chrono::milliseconds(lost_another || end.why != "own" ? 200 : 0);
  const auto at = Clock::now() + wait;
  if (!stop_at_ || at < *stop_at_) stop_at_ = at;
}

bool Launcher::may_start_again(const ProcessExit& e) const {
  return restarts_ < o_.server_restarts && e.name.starts_with("server") && !e.good() && e.end.why == "own" &&
         !stopping_ && !failing_ && interrupted_ == 0 && !workers_done_;
}

void Launcher::add_problem(Link& l, Problem p) {
  if (elastic_ && elastic_->takes_problem(l, p)) {
    l.settled = true;
    return l.cut();
  }
  problems_.push_back(std::move(p));
  l.settled = true;
  stop();
}

void Launcher::settle(Link& l) {
  l.settled = true;
  if (l.bye) return;
  if (!l.hello) {
    if (stopping_ && l.errors.empty()) return;
    return add_problem(l, connection_problem(l.site.host, l.site.here, l.child.code(), l.errors, remote_program(o_)));
  }
  l.lost = true;
  // If this launcher did not read for a while, it has missed the agent's last messages.
  if (!stopping_ && l.child.code() == static_cast<int>(ExitCode::communication))
    return add_problem(l, unheard_launcher(l.host(), host_timeout()));
  if (!stopping_ || l.child.code() == 255)
    return add_problem(l, lost_host(l, unended_, board_, l.site.here ? "it was killed" : "the connection was lost"));
  stop();
}

void Launcher::interrupt(int signal) {
  if (interrupted_ != 0 || !began_) {
    if (interrupted_ == 0) interrupted_ = signal;
    stop();
    return;
  }
  interrupted_ = signal;
  interrupted_at_ = Clock::now();
  say(signal_text(signal) + ": the processes are told to stop; repeat it to end them at once");
  if (elastic_) return elastic_->stop();
  tell_all("signal " + std::to_string(signal == SIGHUP ? SIGTERM : signal));
}

void Launcher::watch() {
  // The launcher may have missed messages of agents while it was paused.
  const auto still = stood_still(watched_);
  for (Link& l : links_) l.heard += still;
  board_.skip(still);
  const auto now = Clock::now();
  if (!stopping_ && stop_at_ && now >= *stop_at_) stop();
  if (seconds_since(spoke_) > std::min(2.0, host_timeout() / 4)) {
    spoke_ = now;
    tell_all("alive");
  }
  if (!stopping_) {
    for (Link& l : links_) {
      if (l.child.closed() || l.settled) continue;
      if (!l.ready && seconds_since(l.began) > o_.connect_timeout + 1) {
        add_problem(
            l, {static_cast<int>(ExitCode::communication),
                error_message("host " + l.host(), "an answer within " + seconds_text(o_.connect_timeout), "none")});
      } else if (l.ready && seconds_since(l.heard) > host_timeout()) {
        l.lost = true;
        add_problem(l, lost_host(l, unended_, board_, "no message from it for " + seconds_text(host_timeout())));
      }
    }
    if (interrupted_ != 0 && seconds_since(interrupted_at_) > o_.stop_timeout) stop();
    watch_progress();
    for (Problem& p : control_->lost(board_)) {
      (elastic_ ? losses_ : problems_).push_back(std::move(p));
      stop();
    }
    if (elastic_) watch_elastic();
    watch_mpirun();
    watch_servers();
  }
  if (stopping_) {
    const double since = seconds_since(stopped_at_);
    if (mpirun_ && since > 0.1 && !mpi_told_) {
      mpi_told_ = true;
      mpirun_->signal(SIGTERM);
    }
    // Ends agents that have not answered by now.
    for (Link& l : links_) l.cut_off(since);
    if (mpirun_ && since > 4) mpirun_->signal(SIGKILL);
    if (mpirun_ && since > 5) mpirun_->hang_up();
  }
}

void Launcher::watch_progress() {
  if (interrupted_ != 0 || failing_) return;
  if (generations_) {
    if (const auto* e = board_.stopped(o_.rank_timeout, Clock::now()))
      give_up(e->name, e->name + " on " + e->host + " has been stopped for " + seconds_text(o_.rank_timeout));
  }
  auto stall = stalled_problem(board_, o_, output_);
  if (!stall) return;
  if (generations_) return give_up(stall->blamed, stall->problem.message);
  problems_.push_back(std::move(stall->problem));
  stop();
}

void Launcher::watch_mpirun() {
  if (!mpirun_ || generations_) return;
  if (!failing_ && !mpirun_->exited() && mpirun_said_.quiet_for() > 1.5) mpirun_said_.repeat(output_.err);
  if (!mpirun_->closed()) return;
  if (!mpi_ended_) mpi_ended_ = Clock::now();
  if (unended_.empty() || seconds_since(*mpi_ended_) > 1) stop();
}

void Launcher::watch_servers() {
  if (plan_.first().order.servers == 0 || mpirun_ || endings_.empty()) return;
  // Further workers may join.
  if (elastic_ && elastic_->waits()) return workers_done_.reset();
  const auto worker = [](const auto& e) { return e.first.starts_with("worker"); };
  if (std::any_of(unended_.begin(), unended_.end(), worker)) return;
  if (interrupted_ != 0 && !unended_.empty()) return;
  if (!workers_done_) workers_done_ = Clock::now();
  const double longest = unended_.empty() ? 0 : control_->any_open() ? o_.stop_timeout : 1;
  if (seconds_since(*workers_done_) >= longest) stop();
}

}  // namespace tutti::launch
