// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/arbiter/arbiter_options.hpp>
#include <tutti/cluster/arbiter/candidate.hpp>
#include <tutti/cluster/arbiter/common_facts.hpp>
#include <tutti/cluster/arbiter/control_store.hpp>
#include <tutti/cluster/arbiter/next_generation.hpp>
#include <tutti/cluster/arbiter/unreachable.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/channel/lease.hpp>
#include <tutti/core/error.hpp>

// The arbiter decides which processes belong to the job, and issues the generations of members one after the other.
namespace tutti::control {

// A state machine without clock and connections: its caller passes it the received messages with the time, and sends
// the messages that it returns. It removes a process from the job at once if the process is known to have ended, and
// otherwise after the whole time-out without heartbeats (see Lease). A broken connection alone proves neither.
class Arbiter {
 public:
  explicit Arbiter(const ArbiterOptions& options) : o_(options) {
    next_id_ = static_cast<ProcessId>(o_.workers) + static_cast<ProcessId>(o_.servers);
    for (int i = 0; i < o_.workers; ++i) absent_.emplace(Role::worker, i);
    for (int i = 0; i < o_.servers; ++i) absent_.emplace(Role::server, i);
  }

  // Handles a message of a connection, except Publish, Lookup, NextNumber and Forget, which ControlStore handles.
  void receive(ConnectionId connection, const Message& message, Time now) {
    if (const auto* m = std::get_if<Enrol>(&message)) return enrol(connection, *m, now);
    Process* p = find(connection);
    if (p == nullptr) return;
    if (p->state == State::gone) {
      if (!p->done) send(*p, Rejection{static_cast<int>(ExitCode::communication), p->why});
      return;
    }
    if (const auto* beat = std::get_if<Heartbeat>(&message)) {
      p->heard = now;
      send(*p, HeartbeatAck{beat->number});
      if (!founded_) send(*p, waiting_for(absent_));
    }
    if (const auto* r = std::get_if<Report>(&message)) report(*p, *r, now);
    if (const auto* s = std::get_if<GroupReady>(&message)) on_group_ready(*p, *s);
    if (const auto* u = std::get_if<UnreachablePeers>(&message)) unreachable(*p, *u, now);
    if (const auto* l = std::get_if<Leave>(&message)) l->done ? done(*p, now) : leave(*p, false);
    if (const auto* e = std::get_if<EpochStart>(&message))
      if (p->state == State::member && e->generation == generation_) epoch_ = e->epoch;
  }
  // Notes that the process of that connection has ended completely. how: a text for messages.
  void ended(ConnectionId connection, const std::string& how) {
    if (Process* p = find(connection); p != nullptr && p->state != State::gone) lose(*p, how);
    std::erase_if(processes_, [&](const Process& p) { return p.connection == connection; });
  }
  // Notes that a founder has ended before it asked for admission. Elastic jobs begin without it.
  void never_comes(Role role, std::int32_t place) {
    if (founded_ || !o_.elastic) return;
    absent_.erase({role, place});
    start_first_generation();
  }
  // Asks a member to leave: at the end of an epoch if ArbiterOptions::at_epoch is set. Releases a process that has not
  // asked for admission when it asks; ignores such a process before the job begins, when the launcher never calls this.
  void ask_to_leave(ConnectionId connection) {
    Process* p = find(connection);
    if (p == nullptr && founded_) unwanted_.insert(connection);
    if (p != nullptr && p->state != State::gone) leave(*p, o_.at_epoch);
  }
  // Returns whether the job could continue without these processes.
  [[nodiscard]] bool can_spare(const std::set<ConnectionId>& connections) const {
    return workers_without(processes_, connections) >= std::max(1, o_.min_workers);
  }
  // Tells all processes to stop. Members that were asked to leave do not leave before: the last one saves a checkpoint.
  void stop_all() {
    stopping_ = true;
    for (Process& p : processes_) p.leaving = p.leaving && !o_.elastic;
    for (const Process& p : processes_)
      if (p.state != State::gone) send(p, Stop{});
    release_servers();
    try_issue();
  }
  // Removes processes that have been silent for too long or cannot reach each other. Call it often.
  void tick(Time now) {
    for (Process& p : processes_)
      if (p.state != State::gone && now - p.heard >= o_.rank_timeout)
        lose(p, "no message for " + seconds_text(o_.rank_timeout));
    if (unreachable_.is_due(now)) evict_unreachable();
  }
  // Call after a time `gap` in which the arbiter could not receive: this silence does not count for any process.
  void forgive(Time now, Time gap) {
    for (Process& p : processes_) p.heard = std::min(now, p.heard + gap);
    unreachable_.postpone(now);
  }

  [[nodiscard]] std::vector<Outgoing> take_messages() { return std::exchange(out_, {}); }
  [[nodiscard]] std::vector<Decision> take_decisions() { return std::exchange(decisions_, {}); }
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }
  [[nodiscard]] ProcessId authority() const noexcept { return authority_; }
  // Returns the epoch that rank 0 reported last.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  // Returns true after a member has completed its work: the work of the job is then complete too.
  [[nodiscard]] bool finished() const noexcept { return finished_; }
  [[nodiscard]] bool stopping() const noexcept { return stopping_; }
  // Returns true if the members wait for further workers, because there are fewer than ArbiterOptions::min_workers.
  [[nodiscard]] bool too_few() const noexcept { return too_few_; }
  // Returns the workers by age, then the servers by their numbers.
  [[nodiscard]] const std::vector<Member>& members() const noexcept { return members_; }

 private:
  using Process = Candidate;
  using State = Candidate::State;

  [[nodiscard]] Process* find(ConnectionId connection) {
    const auto at = std::find_if(processes_.begin(), processes_.end(),
                                 [&](const Process& p) { return p.connection == connection; });
    return at == processes_.end() ? nullptr : &*at;
  }
  void send(const Process& p, Message m) { out_.push_back({p.connection, std::move(m)}); }
  void decide(Decision::Kind kind, const Process& p, std::string why = {}, bool fatal = false) {
    decisions_.push_back({kind, p.connection, p.member, std::move(why), generation_, fatal});
  }

  // ---- admission ----
  void enrol(ConnectionId connection, const Enrol& e, Time now) {
    if (find(connection) != nullptr) return;  // an earlier request of this connection has been answered
    Process p;
    p.member = {0, e.role, e.place, e.host};
    p.connection = connection;
    p.facts = e.facts;
    p.heard = now;
    if (!over_.empty() && (!founded_ || o_.elastic)) {
      give_up(p);
      return processes_.push_back(std::move(p));
    }
    const int count = e.role == Role::worker ? o_.workers : o_.servers;
    if (any([&](const Process& q) { return q.is(e.role) && q.member.place == e.place; })) {
      const std::string other = "the number of " + p.member.name() + ", which has joined already";
      return refuse(std::move(p), "an unused number", other, "");
    }
    if (generation_ == 0 && !o_.elastic && (e.place < 0 || e.place >= count))
      return refuse(std::move(p), numbers_text(count), std::to_string(e.place), "");
    const bool of_beginning = e.place >= 0 && e.place < count;
    const bool again = of_beginning && !came_.emplace(e.role, e.place).second;
    const bool founder = !founded_ && of_beginning && !again;
    if (founded_ && !o_.elastic && !(o_.servers_restart && e.role == Role::server && again))
      return refuse(std::move(p), "only the processes with which the job began", "an additional process", "");
    if (founded_ && differs(p)) return;
    // The id of a founder is its number, so that its rank is the number that the launcher gave it.
    p.member.id = !founder                 ? next_id_++
                  : e.role == Role::worker ? static_cast<ProcessId>(e.place)
                                           : static_cast<ProcessId>(o_.workers + e.place);
    p.newcomer = !founder;
    absent_.erase({e.role, e.place});
    processes_.push_back(std::move(p));
    if (stopping_) send(processes_.back(), Stop{});
    if (finished_ || unwanted_.erase(connection) > 0) return release(processes_.back());
    if (founded_) return change();
    if (!absent_.empty()) send(processes_.back(), waiting_for(absent_));
    start_first_generation();
  }
  void refuse(Process p, const std::string& expected, const std::string& got, const std::string& hint,
              bool fatal = false) {
    p.why = error_message(p.member.name(), expected, got, hint);
    p.state = State::gone;
    send(p, Rejection{static_cast<int>(ExitCode::usage), p.why});
    decide(Decision::Kind::refused, p, p.why, fatal);
    processes_.push_back(std::move(p));
  }
  // Compares the facts of `p` with the facts of the job. Refuses `p`, and no other process, if they differ.
  [[nodiscard]] bool differs(const Process& p) {
    const auto d = facts_.difference(p);
    if (!d) return false;
    const bool fatal = generation_ == 0 && !can_lose(processes_, o_, p);
    refuse(p, d->expected, d->got, "start all processes with the same program, options and data", fatal);
    if (fatal) end_job(p.member.name() + " was refused");
    return true;
  }
  // Prevents further generations. Removes waiting processes now, members when they report, new ones when they ask.
  void end_job(const std::string& why) {
    if (over_.empty()) over_ = error_message("job", "all required processes", why, "");
    for (Process& p : processes_)
      if ((p.state == State::waiting || (p.state == State::member && p.reported)) && !o_.starter_ends) give_up(p);
  }
  void give_up(Process& p) {
    p.state = State::gone;
    p.why = over_;
    send(p, Rejection{static_cast<int>(ExitCode::communication), p.why});
  }

  // ---- the first generation ----
  void start_first_generation() {
    if (!absent_.empty()) return;
    founded_ = true;
    for (const Role role : {Role::worker, Role::server}) choose_facts(role);
    level_ = Urgency::step;
    try_issue();
  }
  // Refuses the processes of a role whose facts differ from the most frequent facts.
  void choose_facts(Role role) {
    const auto odd = take_mismatched(processes_, role, facts_.choose(processes_, role));
    for (const Process& p : odd) (void)differs(p);
  }

  // ---- changes ----
  // Announces a change to the members, and issues the next generation as soon as possible. A change is never withdrawn;
  // it only becomes more urgent.
  void change(Urgency level = Urgency::none) {
    level_ = std::max(level_, level);
    MembershipChange c{generation_, lost_};
    level_ = std::max(level_, count_changes(processes_, o_, c));
    c.broken = level_ == Urgency::broken;
    c.at_epoch = level_ == Urgency::epoch;
    if (level_ == Urgency::none) return;
    for (const Process& p : processes_)
      if (p.state == State::member && !p.reported) send(p, c);
    try_issue();
  }
  void lose(Process& p, const std::string& why, bool unreachable = false) {
    const bool was_member = p.state == State::member;
    p.state = State::gone;
    // The trained state is lost with the last worker that has it, unless servers have it.
    const bool last = p.holds && !o_.servers_hold && !finished_ && !any([](const Process& q) { return q.holds; });
    const bool fatal = last || !can_lose(processes_, o_, p);
    p.why = error_message(p.member.name(), "a process of the job", "one that was removed from the job: " + why, "");
    send(p, Rejection{static_cast<int>(ExitCode::communication), p.why});
    decide(Decision::Kind::lost, p, why, fatal);
    decisions_.back().unreachable = unreachable;
    if (fatal) end_job(p.member.name() + " is gone: " + why);
    // No further worker joins a job that is finished or stopping.
    if (p.member.role == Role::worker && (finished_ || stopping_)) release_servers();
    if (!was_member) return try_issue();
    lost_stayer_ = lost_stayer_ || (o_.lost_are_replaced && p.member.role == Role::worker && !p.leaving);
    lost_.push_back(p.member);
    change(Urgency::broken);
  }
  template <class F>  // f(process)
  [[nodiscard]] bool any(F&& f) const {
    return any_candidate(processes_, f);
  }
  // Notes that a process has completed its work, and the job with it if it is a worker in a generation. It may have
  // been asked to leave: it is released before it ends if it does not complete the work.
  void done(Process& p, Time now) {
    const bool work_done = p.state == State::member && p.is(Role::worker);
    finished_ = finished_ || work_done;
    p.state = State::gone;
    p.done = true;
    decide(Decision::Kind::left, p);
    decisions_.back().work_done = work_done;
    if (finished_)
      for (Process& q : processes_)
        if (q.state == State::waiting && founded_) release(q);
    if (p.member.role == Role::worker) release_servers();
    unreachable_.apply_again(processes_, now);
    try_issue();
  }
  void leave(Process& p, bool at_epoch) {
    if (p.state == State::waiting) {
      release(p);
      return try_issue();
    }
    if ((p.leaving && (at_epoch || !p.leaves_at_epoch)) || (stopping_ && o_.elastic)) return;
    // The last worker does not leave: it ends the job.
    const bool others = any([&](const Process& q) { return &q != &p && q.is(Role::worker) && !q.leaving; });
    if (o_.elastic && p.is(Role::worker) && !others) return stop_all();
    p.leaving = true;
    p.leaves_at_epoch = at_epoch;
    change();
  }
  // Releases the servers if no worker is left. Call it when no other worker can join.
  void release_servers() {
    if (!founded_ || any([](const Process& p) { return p.is(Role::worker); })) return;
    for (Process& p : processes_)
      if (p.state != State::gone) release(p);
  }
  void release(Process& p) {
    send(p, LeaveGranted{});
    p.facts.clear();
    p.facts.shrink_to_fit();
    p.state = State::gone;
    p.done = true;
    decide(Decision::Kind::left, p);
  }
  void report(Process& p, const Report& r, Time now) {
    if (p.state != State::member || r.generation != generation_ || p.reported) return;
    p.reported = true;
    p.operation = 0, p.unreachable.clear();
    p.step = r.step;
    p.epoch_end = r.epoch_end;
    p.preparing = r.preparing;
    if (!over_.empty() && !o_.starter_ends) return give_up(p);
    // The other members would wait for `p` forever, unless all members agreed on the step. They can agree on a step
    // only after their group has formed and after they have received the change.
    if (r.broken || !going_ || level_ == Urgency::none) return change(Urgency::broken);
    unreachable_.apply_again(processes_, now);
    try_issue();
  }
  void on_group_ready(Process& p, const GroupReady& s) {
    const bool takes_part = p.state == State::member && s.generation == generation_ && !p.reported;
    if (!takes_part || level_ == Urgency::broken || p.standing) return;
    p.standing = true;
    for (const Process& q : processes_)
      if (q.state == State::member && !q.standing) return;
    going_ = true;
    for (Process& q : processes_)
      if (q.state == State::member) {
        q.holds = q.is(Role::worker);
        send(q, Start{generation_});
      }
    decisions_.push_back({Decision::Kind::standing, 0, {}, {}, generation_, false});
  }

  // ---- members that cannot reach each other ----
  void unreachable(Process& p, const UnreachablePeers& u, Time now) {
    // Without reports, each member enters the next generation separately, and an operation may outlast a generation.
    if (p.state == State::member && (!o_.reports || (u.generation == generation_ && !p.reported)))
      unreachable_.take(p, u, now);
  }
  void evict_unreachable() {
    // One member at a time: whether the job can lose a member depends on the remaining members.
    const auto can_go = [this](const Process& p) { return can_lose(processes_, o_, p); };
    while (over_.empty()) {
      const auto cut = choose_evicted(blocked_members(processes_, can_go));
      if (!cut) break;
      const std::string other = member_of(processes_, cut->other).member.name();
      lose(member_of(processes_, cut->id), "it and " + other + " cannot reach each other", true);
    }
    const bool may_break = o_.elastic && o_.reports && over_.empty() && level_ != Urgency::broken;
    if (may_break && waits_for_left(processes_)) change(Urgency::broken);
  }

  // ---- the next generation ----
  void try_issue() {
    if (!founded_ || level_ == Urgency::none || !over_.empty()) return;
    const auto at_work = [](const Process& p) { return p.is(Role::worker) && p.state == State::member && !p.reported; };
    if (o_.reports && any(at_work)) return;
    // A job that stops does not wait for further workers.
    const auto next = next_generation(processes_, o_, stopping_ || finished_ ? 1 : std::max(1, o_.min_workers));
    too_few_ = next.too_few;
    if (too_few_) {
      const bool others_may_come = lost_stayer_ && !stopping_ && !finished_;
      if (o_.elastic && !finished_ && must_stop(processes_, others_may_come)) return stop_all();
      const bool may = may_leave(processes_, o_, others_may_come);
      for (Process& p : processes_)
        if (p.state == State::member && p.leaving && may) release(p);
    }
    if (!too_few_ && (o_.elastic || next.servers >= o_.servers)) issue(next.members);
  }
  void issue(const std::vector<Process*>& next) {
    ++generation_;
    level_ = Urgency::none;
    going_ = false;
    lost_.clear();
    lost_stayer_ = false;
    members_.clear();
    for (Process& p : processes_)
      if (p.state == State::member && std::find(next.begin(), next.end(), &p) == next.end()) release(p);
    for (const Process* p : next) members_.push_back(p->member);
    authority_ = authority_of(next);
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(o_.rank_timeout).count();
    for (Process* p : next) {
      p->state = State::member;
      p->reported = p->standing = p->epoch_end = p->preparing = false;
      if (o_.reports) p->operation = 0, p->unreachable.clear();
      send(*p, NewGeneration{generation_, p->member.id, authority_, static_cast<std::uint32_t>(ms), members_});
    }
    decisions_.push_back({Decision::Kind::issued, 0, {}, {}, generation_, false});
    // If processes still wait for the end of an epoch, announces the next change at once.
    change();
  }

  ArbiterOptions o_;
  ProcessId next_id_ = 0, authority_ = 0;
  std::uint64_t generation_ = 0, epoch_ = 0;
  Urgency level_ = Urgency::none;  // urgency of the next generation
  bool founded_ = false, stopping_ = false, too_few_ = false;
  bool going_ = false;                                // the group of the generation was formed
  bool finished_ = false;                             // a member has done its work
  std::string over_{};                                // why no further generation is issued; empty: one may be issued
  std::vector<Member> lost_{};                        // members lost since the generation was issued
  bool lost_stayer_ = false;                          // one of them was a worker that had not been asked to leave
  std::vector<Process> processes_;                    // a process remains here until it has ended
  std::set<std::pair<Role, std::int32_t>> absent_{};  // founders that have not asked for admission yet
  std::set<std::pair<Role, std::int32_t>> came_{};    // founders that have asked for admission
  std::set<ConnectionId> unwanted_{};                 // are released as soon as they ask for admission
  std::vector<Member> members_;
  CommonFacts facts_;
  UnreachableTimer unreachable_{o_.rank_timeout};
  std::vector<Outgoing> out_;
  std::vector<Decision> decisions_;
};

}  // namespace tutti::control
