// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/arbiter/arbiter_service.hpp>
#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/cluster/channel/lease.hpp>
#include <tutti/io/file.hpp>

#include "membership_checks.hpp"
#include "mesh.hpp"
#include "network.hpp"
#include "scheduler.hpp"
#include "tools/launch/job/job_verdict.hpp"

namespace tutti::simulation {

// The process that replaces tutti-launch and its agents. It runs the real arbiter and the real verdict on the job. It
// starts workers, carries frames, learns how processes ended, and looks every 50 ms, as the launcher does.
class Launcher {
 public:
  using Main = std::function<int(Worker&)>;

  // main: runs in the process of each worker, and returns its exit code.
  Launcher(Scheduler& s, Network& n, Meeting& meeting, const control::ArbiterOptions& o, bool replaces, Main main)
      : scheduler_(s),
        network_(n),
        meeting_(meeting),
        service_(o),
        checks_(s, meeting, workers_, o),
        min_workers_(o.min_workers),
        at_epoch_(o.at_epoch),
        rank_timeout_(o.rank_timeout),
        replaces_(replaces),
        main_(std::move(main)) {
    process_ = &s.start_process("launcher", [this] { return run(); });
    for (int i = 0; i < o.workers; ++i) add(control::Role::worker, false);
    for (int i = 0; i < o.servers; ++i) add(control::Role::server, false);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  [[nodiscard]] Process& process() noexcept { return *process_; }
  [[nodiscard]] std::deque<Worker>& workers() noexcept { return workers_; }
  [[nodiscard]] MembershipChecks& checks() noexcept { return checks_; }
  [[nodiscard]] const control::Arbiter& arbiter() const noexcept { return service_.arbiter(); }
  [[nodiscard]] bool is_over() const noexcept { return !process_->runs(); }
  // Returns whether the arbiter decided that the job cannot continue.
  [[nodiscard]] bool failed() const noexcept { return fatal_; }
  // Returns when the job failed. Processes may end for that reason from then on.
  [[nodiscard]] Nanos failed_at() const noexcept { return failed_at_; }
  // Returns whether it ended the job because there were too few workers.
  [[nodiscard]] bool had_too_few() const noexcept { return had_too_few_; }
  // Returns for how long the arbiter has let a worker go, or 0.
  [[nodiscard]] Nanos left_since(const Worker& w) const {
    const auto at = left_at_.find(&w);
    return at == left_at_.end() ? 0 : scheduler_.now() - at->second;
  }
  [[nodiscard]] bool stopping() const noexcept { return service_.arbiter().stopping(); }
  // Makes the launcher do something in its next round.
  void request(std::function<void(Launcher&)> what) { requests_.push_back(std::move(what)); }

  // ---- requests ----
  void add(control::Role role, bool joins) {
    const auto same = [&](const Worker& w) { return w.role == role; };
    const auto place = static_cast<int>(std::count_if(workers_.begin(), workers_.end(), same));
    Worker& w = workers_.emplace_back();
    w.connection = workers_.size() - 1;
    w.role = role;
    w.place = place;
    w.joins = joins;
    w.process = &scheduler_.start_process(std::string(control::name_of(role)) + std::to_string(place),
                                          [this, &w] { return main_(w); });
    const auto [mine, its] = network_.connect(*process_, *w.process);
    w.descriptor = network_.claim(mine);
    w.channel = network_.claim(its);
    meeting_.add(role, place, *w.process);
  }
  // Its host is deleted from the hosts file. The host stays if there would be too few workers.
  void ask_to_leave(Worker& w) {
    const bool stays = !stood_ || (w.member && !service_.arbiter().can_spare({w.connection}));
    if (w.ended || (checks_.follows() && stays)) return;
    w.asked_to_leave = true;
    w.unwanted = stood_ && !service_.knows(w.connection);
    if (service_.knows(w.connection)) checks_.asks_to_leave(w, at_epoch_);
    service_.arbiter().ask_to_leave(w.connection);
  }
  void stop_job() {
    stopping_ = true;
    checks_.stops();
    service_.arbiter().stop_all();
  }

 private:
  static constexpr int round_ms = 50;
  static constexpr std::size_t most_replacements = 6;
  static constexpr Nanos host_timeout = 20 * second, min_timeout = 15 * second;

  [[nodiscard]] int run() {
    control::Time looked = control::now();
    while (!all_ended()) {
      hear();
      for (auto& r : std::exchange(requests_, {})) r(*this);
      replace();
      const control::Time now = control::now();
      if (control::is_pause(now - looked, rank_timeout_))
        service_.arbiter().forgive(now, now - looked);  // as JobControl::lost()
      looked = now;
      const bool failed = fatal_;
      service_.tick(now);
      decide();
      // The launcher itself ends the job for such a loss, unless the work is done: as JobControl::ends_job().
      if (fatal_ && !failed && !service_.arbiter().finished()) loss_ = static_cast<int>(ExitCode::communication);
      send();
      end_if_too_few();
      end_stragglers();
    }
    launch::JobEnd end;
    end.elastic = true;
    end.endings = endings_;
    end.problem = problem_;
    end.loss = loss_;
    end.interrupted = stopping_ ? SIGTERM : 0;
    return launch::judge(end).code;
  }
  [[nodiscard]] bool all_ended() const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [&](const Worker& w) { return w.ended && (w.replace_at == never || !may_replace()); });
  }
  void hear() {
    std::vector<pollfd> list;
    std::vector<Worker*> of;
    for (Worker& w : workers_)
      if (!w.closed && !w.ended) {
        list.push_back({w.descriptor, POLLIN, 0});
        of.push_back(&w);
      }
    (void)::poll(list.data(), list.size(), round_ms);
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].revents != 0) hear(*of[i]);
    // An agent reports the end of a process after the last frame of its channel.
    for (Worker& w : workers_)
      if (w.closed && !w.ended && !w.process->runs()) ended(w);
  }
  void hear(Worker& w) {
    std::string frame(control::longest_frame + 1, '\0');
    for (;;) {
      const ssize_t n = ::recv(w.descriptor, frame.data(), frame.size(), MSG_DONTWAIT);
      if (n < 0) return;
      w.closed = n == 0;
      if (w.closed) return;
      const auto taken = std::string_view(frame).substr(0, static_cast<std::size_t>(n));
      checks_.hear(w, taken, stopping());
      if (!service_.receive(w.connection, taken, control::now()))
        scheduler_.fail(w.process->name + " sent an invalid frame");
      decide();
      send();
    }
  }
  void ended(Worker& w) {
    w.ended = true;
    (void)::close(std::exchange(w.descriptor, -1));
    launch::End end;
    end.by_signal = w.process->state == Process::State::killed;
    end.code = w.process->code;
    if (!end.by_signal && end.code == 0) service_.arbiter().receive(w.connection, control::Leave{true}, control::now());
    service_.ended(w.connection, end.line());
    if (!stood_) {
      // A job begins without some workers, but not without a server or with too few workers.
      const auto left = std::count_if(workers_.begin(), workers_.end(),
                                      [](const Worker& o) { return o.role == control::Role::worker && !o.ended; });
      if (w.role == control::Role::server || left < min_workers_) end_at_once();
      if (!fatal_) service_.arbiter().never_comes(w.role, w.place);
    }
    decide();
    if (w.role == control::Role::server || !w.left || w.did_work || end.by_signal || end.code != 0)
      endings_.push_back({w.process->name, "h" + w.process->name, end, w.did_work});
    send();
  }
  void decide() {
    using Kind = control::Decision::Kind;
    for (const control::Decision& d : service_.arbiter().take_decisions()) {
      if (d.kind == Kind::issued || d.kind == Kind::standing) {
        scheduler_.note(std::string("arbiter: generation ") + std::to_string(d.generation) +
                        (d.kind == Kind::issued ? " is issued" : " stands") + members_text());
        if (d.kind == Kind::issued) {
          checks_.issued(service_.arbiter());
          continue;
        }
        checks_.standing();
        stood_ = true;
        if (!fatal_) endings_.clear();
        continue;
      }
      Worker& w = workers_.at(static_cast<std::size_t>(d.connection));
      scheduler_.note("arbiter: " + w.process->name +
                      (d.kind == Kind::left ? (d.work_done ? " has done the work" : " left") : " is lost: " + d.why) +
                      (d.fatal ? ", fatal" : ""));
      if (d.kind == Kind::left) {
        w.left = true;
        left_at_[&w] = scheduler_.now();
        checks_.left(w, d.work_done);
        w.did_work = w.did_work || d.work_done;
        continue;
      }
      if (d.kind == Kind::lost) checks_.lost(w, d);
      w.refused = d.kind == Kind::refused;
      w.lost_at = scheduler_.now();
      w.unreachable = d.unreachable;
      if (d.fatal) give_up(30 * second);
      if (d.kind == Kind::lost && w.role == control::Role::worker && replaces_ && !fatal_ && !w.asked_to_leave)
        w.replace_at = scheduler_.now() + second;
    }
  }
  // Ends the processes that still run after a time.
  void give_up(Nanos patience) {
    fatal_ = true;
    failed_at_ = std::min(failed_at_, scheduler_.now());
    gave_up_at_ = scheduler_.now();
    give_up_at_ = gave_up_at_ + patience;
  }
  void end_at_once() {
    problem_ = static_cast<int>(ExitCode::communication);
    give_up(0);
  }
  // As Elastic::problem().
  void end_if_too_few() {
    const control::Arbiter& a = service_.arbiter();
    const bool waits = !fatal_ && !stopping_ && !a.finished() && a.too_few();
    too_few_at_ = waits ? std::min(too_few_at_, scheduler_.now() + min_timeout) : never;
    if (scheduler_.now() < too_few_at_) return;
    had_too_few_ = true;
    end_at_once();
  }
  [[nodiscard]] std::string members_text() const {
    std::string text = ":";
    for (const control::Member& m : service_.arbiter().members())
      text += " " + (m.role == control::Role::worker ? "" : std::string("server ")) + std::to_string(m.place);
    return text;
  }
  void send() {
    service_.send([&](control::ConnectionId c, std::string_view frame) {
      Worker& w = workers_.at(static_cast<std::size_t>(c));
      if (w.ended) return;
      checks_.tell(w, frame);
      (void)::send(w.descriptor, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    });
    checks_.round(service_.arbiter());
  }
  [[nodiscard]] bool may_replace() const {
    return !fatal_ && !stopping_ && !service_.arbiter().finished() && replacements_ < most_replacements;
  }
  void replace() {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].replace_at > scheduler_.now()) continue;
      workers_[i].replace_at = never;
      if (!may_replace()) continue;
      ++replacements_;
      add(control::Role::worker, true);
    }
  }
  // Gives up machines that do not answer, and ends the workers of a failed job after some time.
  void end_stragglers() {
    for (Worker& w : workers_)
      if (!w.ended && !w.process->runs() && scheduler_.now() > w.process->ended_at + host_timeout) ended(w);
    if (scheduler_.now() < give_up_at_) return;
    for (Worker& w : workers_) {
      if (!w.process->runs()) continue;
      if (give_up_at_ > gave_up_at_ && w.role == control::Role::worker && checks_.calm_since(gave_up_at_ + 10 * second))
        scheduler_.fail(w.process->name + " has not ended 30 s after the job failed");
      scheduler_.kill(*w.process, SIGKILL);
    }
  }

  Scheduler& scheduler_;
  Network& network_;
  Meeting& meeting_;
  control::ArbiterService service_;
  std::deque<Worker> workers_;
  MembershipChecks checks_;
  int min_workers_;
  bool at_epoch_;
  control::Time rank_timeout_;
  bool replaces_;
  Main main_;
  Process* process_ = nullptr;
  std::vector<std::function<void(Launcher&)>> requests_;
  std::vector<launch::ProcessExit> endings_;
  std::map<const Worker*, Nanos> left_at_;
  std::size_t replacements_ = 0;
  bool fatal_ = false, stopping_ = false, stood_ = false, had_too_few_ = false;
  int problem_ = 0, loss_ = 0;
  Nanos give_up_at_ = never, gave_up_at_ = never, failed_at_ = never, too_few_at_ = never;
};

}  // namespace tutti::simulation
