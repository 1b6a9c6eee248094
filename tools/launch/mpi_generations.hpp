// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/launch/progress_report.hpp>
#include <tutti/core/error.hpp>

#include "blame.hpp"
#include "commands.hpp"
#include "control_socket.hpp"
#include "elastic_file.hpp"
#include "job_folder.hpp"
#include "job_members.hpp"
#include "link.hpp"
#include "mpi.hpp"
#include "mpi_verdict.hpp"
#include "mpirun_output.hpp"
#include "options.hpp"
#include "plan.hpp"

namespace tutti::launch {

// A job over MPI whose workers come and go: one mpirun a generation, because MPI's groups cannot change. Asked by
// SIGUSR1 (behind the next step) or SIGUSR2 (behind the epoch) its ranks save and end with 75, and the next mpirun goes
// on with who is there then; where one is lost, all end, and the next goes on from the last checkpoint.
class MpiGenerations final : public JobMembers {
 public:
  // What the launcher is to know.
  struct MembershipUpdate {
    enum class Kind {
      standing,  // a generation works
      left,      // a worker, of itself
      lost,      // with its host: `why`
      gone,      // a worker has ended for good: `ending`
      failed,    // it came, and nothing worked with it: `why`
      over,      // the job: `endings`
    };
    Kind kind;
    std::string name{}, why{};
    ProcessExit ending{};
    std::vector<ProcessExit> endings{};
  };

  MpiGenerations(const Options& o, const Plan& plan, const JobFolder& folder, std::unique_ptr<Child>& mpirun,
                 MpirunOutput& said)
      : o_(o), plan_(plan), folder_(folder), mpirun_(mpirun), said_(said) {}

  // ---- members ----
  [[nodiscard]] bool opened(const std::string& name) const override { return find(name) != nullptr; }
  [[nodiscard]] bool can_spare(const std::string&) const override {
    return count() - 1 >= std::max(1, o_.elastic.min_workers);
  }
  void ask_to_leave(const std::string& name) override {
    Worker& w = *find(name);
    w.asked = true;
    if (!w.member) leave(w);
  }
  void stop_all() override {
    if (std::exchange(stop_, true)) return;
    if (phase_ == Phase::running) tell_members("signal " + std::to_string(SIGINT));
  }
  [[nodiscard]] bool too_few() const override { return too_few_; }
  [[nodiscard]] bool finished() const override { return finished_; }
  [[nodiscard]] bool stopping() const override { return stop_; }
  [[nodiscard]] std::uint64_t epoch() const override { return 0; }
  [[nodiscard]] std::vector<std::string> standing() const override {
    std::vector<std::string> names;
    for (const auto& [number, w] : workers_)
      if (w.member) names.push_back(w.name);
    return names;
  }
  [[nodiscard]] Link* agent_of(const std::string& host) override {
    for (const auto& [number, w] : workers_)
      if (w.key == host && w.link != nullptr && !w.link->settled) return w.link;
    return nullptr;
  }
  void add(Link& agent, const std::string& name, int number) override {
    workers_[number] = {name, key_of(agent.site.host), number, &agent};
    added_ = Clock::now();
  }

  // ---- what is heard ----
  void set(const Link& l, std::int64_t generation) {
    if (generation == now_.generation) awaited_.erase(&l);
  }
  void halted(const Link& l) {
    if (phase_ == Phase::halting) awaited_.erase(&l);
  }
  void kept(std::string_view base64) { kept_ = base64; }
  void progress(const RankProgress& p) {
    if (phase_ != Phase::running || p.phase == ProgressPhase::none || p.step == 0) return;
    furthest_ = std::max(furthest_, p.step);
    if (!std::exchange(stands_, true)) updates_.push_back({MembershipUpdate::Kind::standing});
    ever_stood_ = true;
  }
  void ended(const ProcessExit& e) {
    Worker* const w = find(e.name);
    if (w == nullptr || !w->member) return;
    w->end = e;
    if (!in_order(e) && !failed_at_) failed_at_ = Clock::now();
  }
  // Its connection is gone.
  void forget(const Link& l) {
    awaited_.erase(&l);
    for (auto w = workers_.begin(); w != workers_.end();) {
      if (w->second.link != &l) {
        ++w;
        continue;
      }
      updates_.push_back({MembershipUpdate::Kind::lost, w->second.name, "its host was lost"});
      if (w->second.member && phase_ != Phase::none) host_lost_ = true;
      w = workers_.erase(w);
    }
    if (host_lost_ && phase_ == Phase::setting) phase_ = Phase::none;
    if (host_lost_ && phase_ == Phase::running) halt();
  }
  // Ends a worker that stands still; true the first time.
  bool give_up(const std::string& name) {
    Worker* const w = find(name);
    if (w == nullptr || w->link == nullptr || phase_ != Phase::running || std::exchange(w->given_up, true))
      return false;
    w->link->say("signal " + std::to_string(SIGKILL) + " " + name);
    return true;
  }

  // ---- what it does ----
  // To be called in each round. Throws where mpirun cannot be started.
  void steer() {
    if (finished_) return;
    if (phase_ == Phase::none) begin();
    if (phase_ == Phase::setting && awaited_.empty()) start();
    if (phase_ == Phase::running) watch();
    if (phase_ == Phase::halting) finish_halt();
  }
  [[nodiscard]] std::vector<MembershipUpdate> take_updates() { return std::exchange(updates_, {}); }
  // Of the generation that runs, or ran last, for mpirun's own words.
  [[nodiscard]] const Plan& plan() const noexcept { return now_; }

 private:
  struct Worker {
    std::string name, key;  // of its host
    int number = 0;
    Link* link = nullptr;
    bool member = false;  // of the generation that runs, or ran last
    bool proven = false;  // of one that stood
    bool asked = false, given_up = false;
    std::optional<ProcessExit> end{};
  };
  enum class Phase { none, setting, running, halting };

  [[nodiscard]] const Worker* find(const std::string& name) const {
    for (const auto& [number, w] : workers_)
      if (w.name == name) return &w;
    return nullptr;
  }
  [[nodiscard]] Worker* find(const std::string& name) { return const_cast<Worker*>(std::as_const(*this).find(name)); }
  [[nodiscard]] int count() const {
    return static_cast<int>(
        std::count_if(workers_.begin(), workers_.end(), [](const auto& w) { return !w.second.asked; }));
  }
  [[nodiscard]] std::set<Link*> agents() const {
    std::set<Link*> all;
    for (const auto& [number, w] : workers_) all.insert(w.link);
    return all;
  }
  void tell_members(const std::string& line) {
    std::set<Link*> told;
    for (const auto& [number, w] : workers_)
      if (w.member && told.insert(w.link).second) w.link->say(line);
  }
  // It is gone: its host's agent, too, once it has none left.
  void leave(const Worker& w) {
    updates_.push_back({MembershipUpdate::Kind::gone, w.name, "", {w.name, w.link->host(), End{}}});
    remove(w);
  }
  void remove(const Worker& w) {
    Link* const link = w.link;
    workers_.erase(w.number);
    if (!agents().contains(link)) link->say("stop");
  }

  // ---- a generation ----
  // Who works in the next one, the launcher's host first and then the hosts by age, as rank 0 is to be where the user
  // is, or was. A break within an epoch is none of its ends.
  [[nodiscard]] std::vector<Worker*> next_members() {
    const bool any = std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return w.second.member; });
    const bool same = broken_ && o_.elastic.at_epoch && any;
    std::vector<Worker*> next, sorted;
    for (auto& [number, w] : workers_)
      if (same ? w.member : !w.asked) next.push_back(&w);
    std::stable_partition(next.begin(), next.end(), [](const Worker* w) { return w->link->site.here; });
    for (const Worker* first : next) {
      if (std::find(sorted.begin(), sorted.end(), first) != sorted.end()) continue;
      for (Worker* w : next)
        if (w->key == first->key) sorted.push_back(w);
    }
    return sorted;
  }
  void begin() {
    if (stop_) return over({});
    const std::vector<Worker*> next = next_members();
    too_few_ = next.empty() || static_cast<int>(next.size()) < o_.elastic.min_workers;
    if (too_few_) return;
    now_ = Plan{};
    now_.job = plan_.job;
    now_.generation = ++generation_;
    std::map<Link*, std::size_t> site_of;
    for (Worker* w : next) {
      const auto [at, fresh] = site_of.emplace(w->link, now_.sites.size());
      if (fresh) now_.sites.push_back({w->link->site.host, w->link->site.here, {}});
      auto& here = now_.sites[at->second].order.processes;
      here.push_back(
          {"worker", w->number, static_cast<int>(here.size()), 0, static_cast<int>(now_.site_of_mpi_rank.size())});
      now_.site_of_mpi_rank.push_back(at->second);
    }
    for (auto& [number, w] : workers_) {
      w.member = std::find(next.begin(), next.end(), &w) != next.end();
      w.end.reset();
      w.given_up = false;
    }
    awaited_.clear();
    for (const auto& [link, site] : site_of) {
      std::string line = "members " + std::to_string(generation_) + " " + std::to_string(next.size()) + " " +
                         (kept_.empty() ? "-" : kept_);
      const auto& processes = now_.sites[site].order.processes;
      for (const ProcessOrder& p : processes)
        line += " " + std::to_string(p.rank) + " " + std::to_string(p.local_rank) + " " +
                std::to_string(processes.size()) + " " + std::to_string(p.mpi_rank);
      link->say(line);
      awaited_.insert(link);
    }
    host_lost_ = false;
    phase_ = Phase::setting;
  }
  void start() {
    said_.forget();
    mpirun_ = std::make_unique<Child>(mpirun_start(now_, o_, folder_.path()), false);
    phase_ = Phase::running;
    stands_ = false;
    furthest_ = 0;
    failed_at_.reset();
    asked_at_ = {};
    if (stop_) tell_members("signal " + std::to_string(SIGINT));
  }
  void watch() {
    // mpirun takes a second to end the others, and does not miss who failed before MPI knew of it.
    if (mpirun_->closed() || (failed_at_ && seconds_since(*failed_at_) > 0.3)) return halt();
    if (!stands_ || stop_ || seconds_since(asked_at_) < 1) return;
    bool change = false;
    for (const auto& [number, w] : workers_)
      // Those of one edit come at nearly the same time.
      change = change || (w.member ? w.asked : o_.elastic.at_epoch || seconds_since(added_) > 0.3);
    if (!change) return;
    // Again and again: at first a process may not have been listening.
    asked_at_ = Clock::now();
    tell_members("signal " + std::to_string(o_.elastic.at_epoch ? SIGUSR2 : SIGUSR1));
  }
  // Whatever of it runs still is ended, and all of its agents say how its processes did.
  void halt() {
    phase_ = Phase::halting;
    halted_at_ = Clock::now();
    awaited_.clear();
    for (const auto& [number, w] : workers_)
      if (w.member && awaited_.insert(w.link).second) w.link->say("halt");
  }
  void finish_halt() {
    const double since = seconds_since(halted_at_);
    if (!mpirun_->closed()) {
      if (since > 0.1 && !std::exchange(mpirun_told_, true)) mpirun_->signal(SIGTERM);
      if (since > 1.5) mpirun_->signal(SIGKILL);
      if (since > 2.5) mpirun_->hang_up();
    }
    if (!mpirun_->closed() || (!awaited_.empty() && since < 6)) return;
    mpirun_told_ = false;
    phase_ = Phase::none;
    conclude();
  }

  // ---- what came of it ----
  void conclude() {
    std::vector<ProcessExit> all;
    bool everyone = true;
    for (const auto& [number, w] : workers_) {
      if (!w.member) continue;
      everyone = everyone && w.end.has_value();
      if (w.end) all.push_back(*w.end);
    }
    const bool did_work = everyone && !host_lost_ && !all.empty() &&
                          std::all_of(all.begin(), all.end(), [](const ProcessExit& e) { return e.good(); });
    if (did_work) {
      for (ProcessExit& e : all) e.did_work = true;
      return finish(all);
    }
    if (stop_) return over(done_in_order(all));
    // What fails before anything works does so again, unless it was killed.
    const bool early = !ever_stood_ && !host_lost_ &&
                       (culprits_of(all).empty() || std::any_of(all.begin(), all.end(), [](const ProcessExit& e) {
                          return !in_order(e) && !e.end.by_signal && e.end.why == "own";
                        }));
    if (early || ends_job(all)) return over(all);
    const bool orderly = everyone && !host_lost_ && std::all_of(all.begin(), all.end(), in_order);
    bool left = false;
    if (orderly) {
      for (const ProcessExit& e : all)
        if (e.good()) {
          left = true;
          updates_.push_back({MembershipUpdate::Kind::left, e.name});
          leave(*find(e.name));
        }
      same_step_.reset();
      vain_ = 0;
    } else if (!blame(all)) {
      return over(all);
    }
    broken_ = !orderly || left;
    if (!broken_ || !o_.elastic.at_epoch)
      for (const std::string& name : standing())
        if (const Worker* w = find(name); w->asked) leave(*w);
    for (auto& [number, w] : workers_) w.proven = w.proven || (w.member && stands_);
    said_.forget();
  }
  // Who is to go because of a generation that broke; false where the job can only end.
  [[nodiscard]] bool blame(const std::vector<ProcessExit>& all) {
    const std::vector<ProcessExit> culprits = culprits_of(all);
    bool newcomers = false, own = false;
    for (const ProcessExit& e : culprits) {
      newcomers = newcomers || !find(e.name)->proven;
      own = own || !e.end.by_signal;
      updates_.push_back({MembershipUpdate::Kind::gone, e.name, "", e});
      remove(*find(e.name));
    }
    if (!culprits.empty() || host_lost_) {
      vain_ = 0;
      // Fails once more where the one before did: it will with whoever is there.
      if (own && !newcomers && same_step_ && furthest_ <= *same_step_) return false;
      if (own && !newcomers) same_step_ = furthest_;
      return true;
    }
    const std::string why = error_message("mpirun", "exit code 0", std::to_string(mpirun_->code()), said_.held());
    bool any = false;
    for (const std::string& name : standing()) {
      const Worker* const w = find(name);
      if (stands_ || w->proven) continue;
      any = true;
      updates_.push_back({MembershipUpdate::Kind::failed, name, why});
      remove(*w);
    }
    return any || ++vain_ < 3;
  }
  void finish(const std::vector<ProcessExit>& all) {
    finished_ = true;
    updates_.push_back({MembershipUpdate::Kind::over, "", "", {}, all});
  }
  void over(const std::vector<ProcessExit>& all) {
    stop_ = true;
    finish(all);
  }

  const Options& o_;
  const Plan& plan_;
  const JobFolder& folder_;
  std::unique_ptr<Child>& mpirun_;
  MpirunOutput& said_;
  std::map<int, Worker> workers_;  // by number, which is by age
  std::vector<MembershipUpdate> updates_;
  Plan now_;
  Phase phase_ = Phase::none;
  std::set<const Link*> awaited_;
  std::string kept_;  // base64
  int generation_ = 0, vain_ = 0;
  std::uint64_t furthest_ = 0;  // step of this generation
  std::optional<std::uint64_t> same_step_;
  bool stop_ = false, finished_ = false, too_few_ = false, stands_ = false, ever_stood_ = false, broken_ = false,
       host_lost_ = false, mpirun_told_ = false;
  Clock::time_point added_{}, asked_at_{}, halted_at_{};
  std::optional<Clock::time_point> failed_at_;
};

}  // namespace tutti::launch
