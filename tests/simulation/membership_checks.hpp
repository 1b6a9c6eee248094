// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/cluster/arbiter/arbiter.hpp>
#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/cluster/channel/control_messages.hpp>

#include "mesh.hpp"
#include "message_checks.hpp"
#include "scheduler.hpp"
#include "worker.hpp"

namespace tutti::simulation {

// Checks what the documents promise about members: which of them get in, leave and are removed, when, and who has the
// authority (docs/explanation/elasticity.md and ranks.md). It knows only the messages of the processes to the arbiter.
class MembershipChecks {
 public:
  MembershipChecks(Scheduler& s, Meeting& meeting, std::deque<Worker>& workers, const control::ArbiterOptions& o)
      : scheduler_(s), meeting_(meeting), workers_(workers), o_(o), messages_(s, workers, o.lost_are_replaced) {}

  // Call it if the scenario calls reached().
  void follow(std::int64_t steps_an_epoch) { steps_an_epoch_ = steps_an_epoch; }
  [[nodiscard]] bool follows() const noexcept { return steps_an_epoch_ > 0; }
  // Notes that no fault explains that a group fails before the arbiter ends it.
  void expect_whole_groups() { messages_.expect_whole_groups(); }
  // Called when a generation is issued or stands, and when a member has left its group or cannot reach another one.
  enum class Event : std::uint8_t { none, issued, stands, report, unreachable };
  std::function<void(Event, const Worker*)> at_event;
  // Notes that this worker cannot reach any other one from now on, and that no other fault happens; null: one does.
  void isolated(const Worker* w) { isolated_ = w; }
  // Notes that a fault delays messages until then.
  void disturb(Nanos until) { disturbed_until_ = std::max(disturbed_until_, until); }
  // Returns whether no fault has delayed messages since then.
  [[nodiscard]] bool calm_since(Nanos time) const { return disturbed_until_ < time; }
  [[nodiscard]] const std::int64_t& newest_step() const noexcept { return newest_; }
  // Returns when a member, a generation or a step came or ended last, or a fault that delays messages.
  [[nodiscard]] Nanos last_event() const noexcept { return std::max(last_event_, disturbed_until_); }
  // A worker has entered a generation.
  void entered(Worker& w, std::uint64_t generation) {
    w.entered = generation;
    if (messages_.stands() < generation) fail(w.process->name + " begins with a group that others have not formed");
  }

  // ---- messages to the arbiter ----
  void hear(Worker& w, std::string_view frame, bool stopping) {
    const auto bytes = w.assembler.take(frame, control::longest_message);
    if (!bytes) return;
    const control::Message m = control::decode(*bytes);
    messages_.hear(w, m, stopping);
    if (std::holds_alternative<control::Heartbeat>(m)) check_heartbeat(w);
    if (std::holds_alternative<control::Enrol>(m)) ask(w, w.joins_after);
    if (const auto* l = std::get_if<control::Leave>(&m); l != nullptr && !l->done && w.member) asks_to_leave(w, false);
    if (const auto* u = std::get_if<control::UnreachablePeers>(&m);
        u != nullptr && u->generation == generation_ && !w.reported) {
      w.cut_from = u->members;
      if (!u->members.empty()) tell_event(Event::unreachable, &w);
    }
    const auto* r = std::get_if<control::Report>(&m);
    if (r == nullptr || r->generation != generation_ || !w.member || w.reported) return;
    if (follows() && w.role == control::Role::worker && messages_.stands() == generation_ && w.entered != generation_)
      fail(w.process->name + " has not begun with its group, which was ready");
    w.reported = true;
    w.cut_from.clear();
    w.step = r->step;
    w.epoch_end = r->epoch_end;
    messages_.reports(w, *r);
    tell_event(Event::report, &w);
  }
  void asks_to_leave(Worker& w, bool at_epoch) {
    if (w.leaves_after >= 0) return;
    w.leaves_at_epoch = at_epoch;
    messages_.asks_to_leave(w);
    ask(w, w.leaves_after);
  }
  void stops() { ask(stop_, stop_.leaves_after); }

  // ---- messages and decisions of the arbiter ----
  void tell(Worker& w, std::string_view frame) {
    if (const auto bytes = w.told.take(frame, control::longest_message)) messages_.tell(w, control::decode(*bytes));
  }
  void round(const control::Arbiter& arbiter) { messages_.round(arbiter); }
  void issued(const control::Arbiter& arbiter) {
    last_event_ = scheduler_.now();
    generation_ = arbiter.generation();
    std::vector<Worker*> next;
    for (const control::Member& m : arbiter.members()) {
      next.push_back(&*std::find_if(workers_.begin(), workers_.end(),
                                    [&](const Worker& w) { return w.role == m.role && w.place == m.place; }));
      next.back()->id = m.id;
    }
    const auto serves = [](const Worker* w) { return w->role == control::Role::server; };
    const auto servers = std::count_if(next.begin(), next.end(), serves);
    if (servers == static_cast<std::ptrdiff_t>(next.size())) fail("a generation has no worker");
    if (o_.servers > 0 && servers == 0) fail("a generation has no server");
    check_authority(next, arbiter.authority());
    if (o_.at_epoch) check_epoch(next);
    for (Worker& w : workers_) {
      w.member = std::find(next.begin(), next.end(), &w) != next.end();
      if (w.member && w.unwanted) fail(w.process->name + " joins, and was asked to leave before it was there");
      w.reported = w.epoch_end = false;
      w.beats = 0;
      w.cut_from.clear();
    }
    if (!arbiter.stopping() && !arbiter.finished()) check_minimum();
    messages_.issued(generation_);
    tell_event(Event::issued, nullptr);
  }
  void standing() {
    last_event_ = scheduler_.now();
    messages_.standing();
    for (Worker& w : workers_) {
      w.stood += w.member ? 1 : 0;
      if (w.member && meeting_.formed(*w.process) < generation_)
        fail("the group begins, and " + w.process->name + " has not formed it");
    }
    tell_event(Event::stands, nullptr);
  }
  void lost(Worker& w, const control::Decision& d) {
    last_event_ = scheduler_.now();
    if (d.unreachable) check_removed(w);
    messages_.lost(w, d.fatal);
  }
  void left(Worker& w, bool work_done) {
    last_event_ = scheduler_.now();
    messages_.left(w, work_done);
  }

  // ---- steps ----
  // A worker has done a step. Checks that members come, leave and stop soon after they have asked.
  void reached(std::int64_t step, bool stopping) {
    if (step <= newest_) return;
    newest_ = step;
    last_event_ = scheduler_.now();
    scheduler_.wake_all(&newest_);
    for (const Worker& w : workers_) {
      if (!w.process->runs() || w.lost_at != never || w.left || stopping || !calm_since(w.asked_at)) continue;
      const bool waits = w.role == control::Role::worker && !w.member && w.joins_after >= 0;
      if (waits && step > latest(w.joins_after, o_.at_epoch))
        fail(w.process->name + " still waits to join, after " + std::to_string(step - w.joins_after) + " steps");
      if (w.leaves_after >= 0 && step > latest(w.leaves_after, w.leaves_at_epoch))
        fail(w.process->name + " does not leave, after " + std::to_string(step - w.leaves_after) + " steps");
    }
    if (stopping && calm_since(stop_.asked_at) && step > latest(stop_.leaves_after, false))
      fail("the job does not stop, after " + std::to_string(step - stop_.leaves_after) + " steps");
  }

 private:
  static constexpr std::int64_t patience = 16;  // steps for the messages until all members know of a change

  [[noreturn]] void fail(const std::string& why) { scheduler_.fail(why); }
  void tell_event(Event e, const Worker* w) {
    if (at_event) at_event(e, w);
  }
  void ask(Worker& w, std::int64_t& after) {
    after = newest_;
    w.asked_at = scheduler_.now();
  }
  [[nodiscard]] std::int64_t latest(std::int64_t asked, bool at_epoch) const {
    const std::int64_t step = asked + patience;
    return at_epoch ? (step / steps_an_epoch_ + 1) * steps_an_epoch_ : step;
  }
  // A member sends a heartbeat at least five times within the time-out, and messages can be late by a fifth of it.
  void check_heartbeat(Worker& w) {
    const Nanos before = std::exchange(w.heard_at, scheduler_.now());
    if (w.member && ++w.beats > 2 && calm_since(before) && w.heard_at - before > o_.rank_timeout.count() * 9 / 20)
      fail(w.process->name + " was silent for " + std::to_string((w.heard_at - before) / ms) + " ms");
  }
  // Workers that wait will join when the members have prepared their state.
  void check_minimum() {
    const auto counts = [](const Worker& w) { return w.role == control::Role::worker && w.in_job(); };
    if (std::count_if(workers_.begin(), workers_.end(), counts) < o_.min_workers)
      fail("a generation begins with fewer workers than the minimum");
  }
  // The authority is the oldest of the members with the most steps, or the oldest member of the first generation.
  void check_authority(const std::vector<Worker*>& next, control::ProcessId authority) {
    const Worker* right = nullptr;
    for (const Worker* w : next)
      if (w->member && w->role == control::Role::worker && (right == nullptr || w->step > right->step)) right = w;
    if (right == nullptr) right = next.front();
    if (right->id != authority)
      fail(right->process->name + " has step " + std::to_string(right->step) +
           ", and another member has the authority");
  }
  // Workers join at the end of an epoch, unless there are too few, or all that have the state are about to leave.
  void check_epoch(const std::vector<Worker*>& next) {
    bool comes = false, within = false, all_leave = true;
    int stay = 0;
    for (const Worker* w : next) {
      if (w->role == control::Role::server) continue;
      comes = comes || !w->member;
      if (!w->member) continue;
      ++stay;
      within = within || !w->epoch_end;
      all_leave = all_leave && w->leaves_after >= 0;
    }
    if (comes && within && !all_leave && stay >= o_.min_workers) fail("a worker joins within an epoch");
  }
  // The rules of docs/explanation/elasticity.md#hosts-that-do-not-reach-each-other.
  void check_removed(const Worker& w) {
    const auto cut = [](const Worker& a, const Worker& b) {
      const auto names = [](const Worker& x, const Worker& y) {
        return std::find(x.cut_from.begin(), x.cut_from.end(), y.id) != x.cut_from.end();
      };
      if (!a.member || !b.member || &a == &b) return false;
      // A server and a worker that waits for the next generation send no reports.
      const bool one = a.role != b.role || a.reported || b.reported;
      return one ? names(a, b) || names(b, a) : names(a, b) && names(b, a);
    };
    const auto cuts = [&](const Worker& a) {
      return std::count_if(workers_.begin(), workers_.end(), [&](const Worker& b) { return cut(a, b); });
    };
    const auto needed = [&](const Worker& a) {
      return a.role == control::Role::server && std::none_of(workers_.begin(), workers_.end(), [&](const Worker& b) {
               return &b != &a && b.role == a.role && b.lost_at == never && !b.left && !b.ended;
             });
    };
    // All members report within the delay after which the arbiter applies the rule.
    const auto workers = std::count_if(workers_.begin(), workers_.end(), [](const Worker& x) { return x.trains(); });
    if (isolated_ != nullptr && isolated_->trains() && workers > 2 && &w != isolated_)
      fail(w.process->name + " is removed, and " + isolated_->process->name + " reaches no other member");
    isolated_ = nullptr;
    if (cuts(w) == 0) fail(w.process->name + " is removed, and no other member has reported that it is cut off");
    for (const Worker& other : workers_) {
      if (!cut(w, other) || needed(other)) continue;
      if (needed(w) || cuts(w) < cuts(other) || (cuts(w) == cuts(other) && w.id < other.id))
        fail(w.process->name + " is removed, and not " + other.process->name);
    }
  }

  Scheduler& scheduler_;
  Meeting& meeting_;
  std::deque<Worker>& workers_;
  control::ArbiterOptions o_;
  Worker stop_{};  // only the time of the request
  const Worker* isolated_ = nullptr;
  std::uint64_t generation_ = 0;
  std::int64_t newest_ = 0, steps_an_epoch_ = 0;
  Nanos disturbed_until_ = 0, last_event_ = 0;
  MessageChecks messages_;
};

}  // namespace tutti::simulation
