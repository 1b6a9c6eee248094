// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <variant>

#include <tutti/cluster/arbiter/arbiter.hpp>
#include <tutti/cluster/channel/control_messages.hpp>

#include "scheduler.hpp"
#include "worker.hpp"

namespace tutti::simulation {

// Checks the messages of the arbiter and of the members (control_messages.hpp): each process gets each message that it
// must get in the round of the launcher in which its reason arose, none without a reason, and none twice. Call the
// functions in the order of the events.
class MessageChecks {
 public:
  // replaces: new workers replace lost ones.
  MessageChecks(Scheduler& s, std::deque<Worker>& workers, bool replaces)
      : scheduler_(s), workers_(workers), replaces_(replaces) {}

  [[nodiscard]] std::uint64_t stands() const noexcept { return stands_; }
  // Notes that no fault explains that a group fails before the arbiter ends it.
  void expect_whole_groups() { whole_ = true; }

  // ---- reasons ----
  void hear(Worker& w, const control::Message& m, bool stopping) {
    if (const auto* l = std::get_if<control::Leave>(&m)) w.said_done = w.said_done || l->done;
    if (std::holds_alternative<control::Heartbeat>(m) && !w.left && !w.said_done)
      w.lost_at != never || w.rejected ? owe<control::Rejection>(w) : owe<control::HeartbeatAck>(w);
    if (std::holds_alternative<control::Enrol>(m)) {
      if (failed_) return owe<control::Rejection>(w);
      if (stopping) owe<control::Stop>(w);
      if (finished_ || w.unwanted) owe<control::LeaveGranted>(w);
    }
  }
  // A process that waits leaves at once. The last worker that stays stops the job instead of leaving it.
  void asks_to_leave(Worker& w) {
    if (!w.in_job()) return;
    if (!w.member) return owe<control::LeaveGranted>(w);
    must_stop_ = must_stop_ || (w.trains() && !stays(&w));
  }
  // A member has left the current generation.
  void reports(Worker& w, const control::Report& r) {
    if (failed_) return owe<control::Rejection>(w);
    if (r.broken && whole_ && !broken_) fail(w, "leaves a group that has failed, and no fault explains it");
    if (r.broken) return breaks();
    if (stands_ != generation_ || !w.told_change)
      fail(w, "leaves generation " + std::to_string(generation_) + " in order, and nothing is to change");
    if (step_ != no_step && step_ != r.step) fail(w, "leaves after another step than the others");
    step_ = r.step;
  }
  void issued(std::uint64_t generation) {
    if (generation != generation_ + 1) scheduler_.fail("generation " + std::to_string(generation) + " is issued");
    generation_ = generation;
    broken_ = false;
    step_ = no_step;
    lost_.clear();
    for (Worker& w : workers_) {
      w.told_change = false;
      if (w.member) owe<control::NewGeneration>(w);
    }
  }
  void standing() {
    if (broken_) scheduler_.fail("a generation begins that has lost a member or was left by one");
    stands_ = generation_;
    for (Worker& w : workers_)
      if (w.member) owe<control::Start>(w);
  }
  void lost(Worker& w, bool fatal) {
    if (fatal != (failed_ ? fatal : ends_job(w)))
      fail(w, fatal ? "is lost, and its loss ends the job" : "is lost, and its loss does not end the job");
    owe<control::Rejection>(w);
    if (fatal) {
      failed_ = true;
      for (Worker& o : workers_)
        if (&o != &w && o.in_job() && (!o.member || o.reported)) owe<control::Rejection>(o);
    }
    if (!w.member) return;
    lost_.insert(w.id);
    w.member = false;
    breaks();
  }
  void left(Worker& w, bool work_done) {
    finished_ = finished_ || work_done;
    if (!w.said_done) owe<control::LeaveGranted>(w);
    w.owed.erase(control::Message(control::MembershipChange{}).index());
    w.member = false;
  }

  // ---- what the arbiter sends ----
  void tell(Worker& w, const control::Message& m) {
    const bool owed = w.owed.erase(m.index()) > 0;
    const auto only = [&](bool allowed) {
      if (!allowed) fail(w, "gets message " + std::to_string(m.index()) + " without a reason");
    };
    if (const auto* g = std::get_if<control::NewGeneration>(&m))
      only(owed && g->generation == generation_ && g->you == w.id);
    if (const auto* s = std::get_if<control::Start>(&m)) only(owed && s->generation == generation_);
    if (std::holds_alternative<control::LeaveGranted>(m)) only(owed);
    if (std::holds_alternative<control::Rejection>(m)) {
      only(w.lost_at != never || failed_);
      w.rejected = true;
    }
    if (std::holds_alternative<control::Stop>(m)) w.told_stop = true;
    if (const auto* c = std::get_if<control::MembershipChange>(&m); c != nullptr && c->generation == generation_) {
      w.told_change = true;
      if (c->broken && !broken_) {
        only(lacks_message());
        breaks();
        w.owed.erase(m.index());
      }
      only(std::all_of(c->lost.begin(), c->lost.end(), [&](const auto& o) { return lost_.contains(o.id); }));
      if (!c->broken && owed) owe<control::MembershipChange>(w);
    }
  }
  // Call it after all messages of a round have been sent.
  void round(const control::Arbiter& arbiter) {
    if (must_stop_ && !arbiter.stopping()) scheduler_.fail("the last worker is to leave, and the job does not stop");
    bool at_work = false, one_stays = false, one_leaves = false;
    const bool over = generation_ > 0 && !failed_ && (arbiter.stopping() || finished_) && !has(control::Role::worker);
    if (over && has(control::Role::server)) scheduler_.fail("no worker is left, and a server is not released");
    for (Worker& w : workers_) {
      if (w.ended || w.closed) {
        w.owed.clear();
      } else if (!w.owed.empty()) {
        fail(w, "does not get message " + std::to_string(*w.owed.begin()));
      } else if (arbiter.stopping() && w.in_job() && !w.told_stop) {
        fail(w, "is not told that the job stops");
      }
      at_work = at_work || (w.trains() && !w.reported);
      one_stays = one_stays || (w.trains() && w.leaves_after < 0);
      one_leaves = one_leaves || (w.trains() && w.leaves_after >= 0);
    }
    if (!one_leaves || at_work || failed_ || arbiter.stopping()) return;
    if (one_stays) scheduler_.fail("a worker was asked to leave, and waits with all others");
    if (!stays() && !replaces_ && !finished_) scheduler_.fail("all workers are to leave, and the job does not stop");
  }

 private:
  static constexpr std::uint64_t no_step = ~std::uint64_t{0};

  [[noreturn]] void fail(const Worker& w, const std::string& what) { scheduler_.fail(w.process->name + " " + what); }
  template <class M>
  static void owe(Worker& w) {
    w.owed.insert(control::Message(M{}).index());
  }
  // The members that are still at work must leave at once.
  void breaks() {
    broken_ = true;
    for (Worker& w : workers_)
      if (w.member && !w.reported) owe<control::MembershipChange>(w);
  }
  // Returns whether a process of this role is in the job.
  [[nodiscard]] bool has(control::Role role) const {
    return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& o) { return o.in_job() && o.role == role; });
  }
  // Returns whether a worker that was not asked to leave is in the job, apart from this one.
  [[nodiscard]] bool stays(const Worker* but = nullptr) const {
    return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& o) {
      return &o != but && o.in_job() && o.role == control::Role::worker && o.leaves_after < 0;
    });
  }
  // Returns whether a member lacks the last message of one that has left, and cannot get it.
  [[nodiscard]] bool lacks_message() const {
    const auto is_member = [&](control::ProcessId id) {
      return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& o) { return o.member && o.id == id; });
    };
    return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& w) {
      return w.member && !w.reported && !std::all_of(w.cut_from.begin(), w.cut_from.end(), is_member);
    });
  }
  // A job ends with the last worker that has trained, before the work is done, and with its last server.
  [[nodiscard]] bool ends_job(const Worker& w) const {
    const bool other = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& o) {
      return &o != &w && o.in_job() && o.role == w.role && (o.role == control::Role::server || o.stood > 0);
    });
    return !other && (w.role == control::Role::server || (w.stood > 0 && !finished_));
  }

  Scheduler& scheduler_;
  std::deque<Worker>& workers_;
  std::uint64_t generation_ = 0, stands_ = 0, step_ = no_step;
  bool replaces_, whole_ = false, broken_ = false, failed_ = false, finished_ = false;
  bool must_stop_ = false;               // the last worker was asked to leave
  std::set<control::ProcessId> lost_{};  // members that this generation has lost
};

}  // namespace tutti::simulation
