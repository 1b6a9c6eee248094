// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <tutti/cluster/arbiter/arbiter.hpp>
#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/cluster/channel/control_messages.hpp>

#include "mesh.hpp"
#include "scheduler.hpp"

namespace tutti::simulation {

// A process of a simulated job, as the launcher knows it and as the checks need it: a worker, or a server.
struct Worker {
  control::ConnectionId connection = 0;
  control::Role role = control::Role::worker;
  int place = 0;       // its number among the processes of its role
  bool joins = false;  // it was not started with the job
  Process* process = nullptr;
  int descriptor = -1;  // the launcher's end of its channel
  int channel = -1;     // its own end
  bool closed = false;  // its channel has ended
  bool ended = false;   // the launcher knows its end
  bool asked_to_leave = false, signalled = false;
  bool holds = false;  // it has trained in a generation, so it has the state
  bool left = false, did_work = false, unreachable = false, refused = false;
  Nanos lost_at = never;     // the arbiter has removed it
  Nanos replace_at = never;  // the launcher starts another worker for it
  // What the arbiter has received from it.
  control::MessageAssembler assembler{};
  control::ProcessId id = 0;
  bool member = false, reported = false, epoch_end = false, leaves_at_epoch = false;
  std::uint64_t step = 0;
  int stood = 0;  // generations that it has formed with all others
  std::vector<control::ProcessId> cut_from{};
  std::int64_t joins_after = -1, leaves_after = -1;  // the newest step when it asked; -1: it has not asked
  Nanos asked_at = 0;
};

// Checks what the documents promise about members: which of them get in, leave and are removed, when, and who has the
// authority (docs/explanation/elasticity.md and ranks.md). It knows only the messages of the processes to the arbiter.
class MembershipChecks {
 public:
  MembershipChecks(Scheduler& s, Meeting& meeting, std::deque<Worker>& workers, const control::ArbiterOptions& o)
      : scheduler_(s), meeting_(meeting), workers_(workers), o_(o) {}

  // Call it if the scenario calls reached().
  void follow(std::int64_t steps_an_epoch) { steps_an_epoch_ = steps_an_epoch; }
  [[nodiscard]] bool follows() const noexcept { return steps_an_epoch_ > 0; }
  // Notes that a fault delays messages until then.
  void disturb(Nanos until) { disturbed_until_ = std::max(disturbed_until_, until); }
  // Returns whether no fault has delayed messages since then.
  [[nodiscard]] bool calm_since(Nanos time) const { return disturbed_until_ < time; }
  [[nodiscard]] const std::int64_t& newest_step() const noexcept { return newest_; }

  // ---- messages to the arbiter ----
  void hear(Worker& w, std::string_view frame) {
    const auto bytes = w.assembler.take(frame, control::longest_message);
    if (!bytes) return;
    const control::Message m = control::decode(*bytes);
    if (std::holds_alternative<control::Enrol>(m)) ask(w, w.joins_after);
    if (const auto* l = std::get_if<control::Leave>(&m); l != nullptr && !l->done && w.member) asks_to_leave(w, false);
    if (const auto* u = std::get_if<control::UnreachablePeers>(&m);
        u != nullptr && u->generation == generation_ && !w.reported)
      w.cut_from = u->members;
    const auto* r = std::get_if<control::Report>(&m);
    if (r == nullptr || r->generation != generation_ || w.reported) return;
    w.reported = true;
    w.cut_from.clear();
    w.step = r->step;
    w.epoch_end = r->epoch_end;
  }
  void asks_to_leave(Worker& w, bool at_epoch) {
    if (w.leaves_after >= 0) return;
    w.leaves_at_epoch = at_epoch;
    ask(w, w.leaves_after);
  }
  void stops() { ask(stop_, stop_.leaves_after); }

  // ---- decisions of the arbiter ----
  void issued(const control::Arbiter& arbiter) {
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
      w.reported = w.epoch_end = false;
      w.cut_from.clear();
    }
  }
  void standing() {
    for (Worker& w : workers_) {
      w.stood += w.member ? 1 : 0;
      if (w.member && meeting_.formed(*w.process) < generation_)
        fail("the group begins, and " + w.process->name + " has not formed it");
    }
  }
  // unreachable: it was removed because it and another process cannot reach each other.
  void lost(Worker& w, bool unreachable) {
    if (unreachable) check_removed(w);
    w.member = false;
  }
  void left(Worker& w) { w.member = false; }

  // ---- steps ----
  // A worker has done a step. Checks that members come, leave and stop soon after they have asked.
  void reached(std::int64_t step, bool stopping) {
    if (step <= newest_) return;
    newest_ = step;
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
  void ask(Worker& w, std::int64_t& after) {
    after = newest_;
    w.asked_at = scheduler_.now();
  }
  [[nodiscard]] std::int64_t latest(std::int64_t asked, bool at_epoch) const {
    const std::int64_t step = asked + patience;
    return at_epoch ? (step / steps_an_epoch_ + 1) * steps_an_epoch_ : step;
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
  std::uint64_t generation_ = 0;
  std::int64_t newest_ = 0, steps_an_epoch_ = 0;
  Nanos disturbed_until_ = 0;
};

}  // namespace tutti::simulation
