// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/job/control_messages.hpp>
#include <tutti/job/control_store.hpp>
#include <tutti/job/job_facts.hpp>
#include <tutti/job/lease.hpp>

// Who is in the job. One arbiter decides it, and nobody else: it lets processes in, gives them up, and issues one
// generation of members behind the other.
namespace tutti::control {

struct ArbiterOptions {
  int workers = 1, servers = 0;  // that the job begins with
  Time rank_timeout = std::chrono::seconds(10);
  // A member that is lost, or joins later, makes the next generation; otherwise the loss of one ends the job.
  bool elastic = false;
  // A server may come back under its number, which makes the next generation too.
  bool servers_restart = false;
  // The next generation waits until each worker has reported that it has left the one before. Otherwise members change
  // over each for itself.
  bool reports = true;
  int min_workers = 1;
};

// What the arbiter has found, for whoever runs it.
struct Decision {
  enum class Kind {
    lost,      // by its death or its silence (`why`); `fatal`: which ends the job
    refused,   // `why`
    left,      // as it wanted to
    issued,    // a generation: `generation`
    standing,  // all its members stand
  };
  Kind kind = Kind::lost;
  Seat seat = 0;
  Member member{};
  std::string why{};
  std::uint64_t generation = 0;
  bool fatal = false;
};

// The arbiter: a state machine that has neither clock nor connections. What arrives is handed to it with the time, and
// what it wants sent is taken from it. A process is heard of by its beats; one that is known to have ended is given up
// at once, one that is silent after the whole time-out, see Lease. That a connection broke says nothing.
class Arbiter {
 public:
  explicit Arbiter(const ArbiterOptions& options) : o_(options) {
    next_id_ = static_cast<ProcessId>(o_.workers) + static_cast<ProcessId>(o_.servers);
    for (int i = 0; i < o_.workers; ++i) absent_.emplace(Role::worker, i);
    for (int i = 0; i < o_.servers; ++i) absent_.emplace(Role::server, i);
  }

  // A message of the connection `seat`. Publish, Lookup and Forget are not its matter.
  void receive(Seat seat, const Message& message, Time now) {
    if (const auto* m = std::get_if<Enrol>(&message)) return enrol(seat, *m, now);
    Process* p = find(seat);
    if (p == nullptr) return;
    if (p->state == State::gone) {
      if (!p->done) send(*p, Refused{static_cast<int>(ExitCode::communication), p->why});
      return;
    }
    if (const auto* beat = std::get_if<Beat>(&message)) {
      p->heard = now;
      send(*p, Answered{beat->number});
      if (!founded_) send(*p, waiting());
    }
    if (const auto* r = std::get_if<Report>(&message)) report(*p, *r);
    if (const auto* s = std::get_if<Stands>(&message)) stands(*p, *s);
    if (const auto* l = std::get_if<Leave>(&message)) leave(*p, l->done);
  }
  // The process of that connection has ended: nothing of it runs any more.
  void ended(Seat seat, const std::string& how) {
    if (Process* p = find(seat); p != nullptr && p->state != State::gone) lose(*p, how);
  }
  // Asks a member to leave in order, as if it had asked itself.
  void ask_to_leave(Seat seat) {
    if (Process* p = find(seat); p != nullptr && p->state != State::gone) leave(*p, false);
  }
  // Gives up whoever has been silent for too long. To be called often.
  void tick(Time now) {
    for (Process& p : processes_)
      if (p.state != State::gone && now - p.heard >= o_.rank_timeout) {
        const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(o_.rank_timeout).count();
        lose(p, "no sign of life for " + std::to_string(ms / 1000) +
                    (ms % 1000 == 0 ? "" : "." + std::to_string(ms % 1000 / 100)) + " s");
      }
  }
  // The arbiter was itself not able to hear: nobody's silence until now counts.
  void forgive(Time now) {
    for (Process& p : processes_) p.heard = now;
  }

  [[nodiscard]] std::vector<Outgoing> take_messages() { return std::exchange(out_, {}); }
  [[nodiscard]] std::vector<Decision> take_decisions() { return std::exchange(decisions_, {}); }
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }
  [[nodiscard]] ProcessId authority() const noexcept { return authority_; }
  // Workers by age, and behind them the servers by their numbers.
  [[nodiscard]] const std::vector<Member>& members() const noexcept { return members_; }

 private:
  enum class State { waiting, member, gone };
  struct Process {
    Member member{};
    Seat seat = 0;
    State state = State::waiting;
    std::string facts{};
    Time heard{};
    bool leaving = false, done = false, reported = false, standing = false;
    std::uint64_t step = 0;
    std::string why{};  // it is gone
  };

  [[nodiscard]] Process* find(Seat seat) {
    const auto at =
        std::find_if(processes_.begin(), processes_.end(), [&](const Process& p) { return p.seat == seat; });
    return at == processes_.end() ? nullptr : &*at;
  }
  void send(const Process& p, Message m) { out_.push_back({p.seat, std::move(m)}); }
  void decide(Decision::Kind kind, const Process& p, std::string why = {}, bool fatal = false) {
    decisions_.push_back({kind, p.seat, p.member, std::move(why), generation_, fatal});
  }

  // ---- being let in ----
  void enrol(Seat seat, const Enrol& e, Time now) {
    if (find(seat) != nullptr) return;  // it has had its answer
    Process p;
    p.member = {0, e.role, e.place, e.host};
    p.seat = seat;
    p.facts = e.facts;
    p.heard = now;
    const int count = e.role == Role::worker ? o_.workers : o_.servers;
    const bool taken = std::any_of(processes_.begin(), processes_.end(), [&](const Process& q) {
      return q.state != State::gone && q.member.role == e.role && q.member.place == e.place;
    });
    if (taken) {
      const std::string other = p.member.name() + ", who is there already";
      return refuse(std::move(p), "a number of its own", other, "");
    }
    if (generation_ == 0 && !o_.elastic && (e.place < 0 || e.place >= count))
      return refuse(std::move(p), count == 1 ? "number 0" : "a number from 0 to " + std::to_string(count - 1),
                    std::to_string(e.place), "");
    const bool founder = !founded_ && e.place >= 0 && e.place < count && !was_there(e.role, e.place);
    if (founded_ && !o_.elastic && !(o_.servers_restart && e.role == Role::server && was_there(e.role, e.place)))
      return refuse(std::move(p), "the processes that the job began with", "one more", "");
    if (founded_ && differs(p)) return;
    // Founders by their numbers, so that ranks are what their starter said.
    p.member.id = !founder                 ? next_id_++
                  : e.role == Role::worker ? static_cast<ProcessId>(e.place)
                                           : static_cast<ProcessId>(o_.workers + e.place);
    absent_.erase({e.role, e.place});
    processes_.push_back(std::move(p));
    if (founded_) return change();
    if (!absent_.empty()) send(processes_.back(), waiting());
    found();
  }
  [[nodiscard]] bool was_there(Role role, std::int32_t place) const {
    return std::any_of(processes_.begin(), processes_.end(),
                       [&](const Process& q) { return q.member.role == role && q.member.place == place; });
  }
  void refuse(Process p, const std::string& expected, const std::string& got, const std::string& hint) {
    p.why = error_message(p.member.name(), expected, got, hint);
    p.state = State::gone;
    send(p, Refused{static_cast<int>(ExitCode::usage), p.why});
    decide(Decision::Kind::refused, p, p.why);
    processes_.push_back(std::move(p));
  }
  // Compares with what the job's processes of this kind have in common, and a server with what the workers say of the
  // same; refuses it alone where it differs.
  [[nodiscard]] bool differs(const Process& p) {
    JobFacts::Difference d = difference_from_workers(p);
    const bool from_workers = !d.name.empty();
    const auto usual = facts_.find(p.member.role);
    if (!from_workers && usual != facts_.end() && usual->second != p.facts)
      d = JobFacts::parse(usual->second).first_difference(JobFacts::parse(p.facts));
    if (d.name.empty()) return false;
    refuse(
        p,
        printable(d.name) + " " + printable(d.mine) + (from_workers ? ", as the workers have" : ", as the others have"),
        printable(d.other), "start all processes with the same program, options and data");
    return true;
  }
  // Servers know less of a job, or more.
  [[nodiscard]] JobFacts::Difference difference_from_workers(const Process& p) const {
    const auto workers = facts_.find(Role::worker);
    if (p.member.role != Role::server || workers == facts_.end()) return {};
    return JobFacts::parse(workers->second).first_difference_in_common(JobFacts::parse(p.facts));
  }

  // ---- the first generation ----
  [[nodiscard]] Waiting waiting() const {
    constexpr std::size_t most = 3;
    std::string missing;
    std::size_t shown = 0;
    for (const auto& [role, place] : absent_)
      if (++shown <= most) missing += (missing.empty() ? "" : ", ") + Member{0, role, place, ""}.name();
    if (absent_.size() > most) missing += " and " + std::to_string(absent_.size() - most) + " more";
    return {missing};
  }
  void found() {
    if (!absent_.empty()) return;
    founded_ = true;
    for (const Role role : {Role::worker, Role::server}) choose_facts(role);
    changing_ = true;
    try_issue();
  }
  // What most of them have, or among as many the one with the lowest number: the odd one is refused, whoever it is.
  void choose_facts(Role role) {
    std::map<std::string, int> count;
    const Process* usual = nullptr;
    const auto counts = [&](const Process& p) {
      return p.member.role == role && p.state != State::gone && difference_from_workers(p).name.empty();
    };
    for (const Process& p : processes_)
      if (counts(p)) ++count[p.facts];
    for (const Process& p : processes_) {
      if (!counts(p)) continue;
      const bool better = usual == nullptr || count[p.facts] > count[usual->facts] ||
                          (count[p.facts] == count[usual->facts] && p.member.place < usual->member.place);
      if (better) usual = &p;
    }
    if (usual != nullptr) facts_[role] = usual->facts;
    std::vector<Process> odd;
    std::erase_if(processes_, [&](const Process& p) {
      const bool is_odd =
          p.member.role == role && p.state != State::gone && !(usual != nullptr && p.facts == facts_[role]);
      if (is_odd) odd.push_back(p);
      return is_odd;
    });
    for (const Process& p : odd) (void)differs(p);
  }

  // ---- changes ----
  // Tells all members that theirs is not the last generation, and issues the next as soon as that may be.
  void change(std::vector<Member> lost = {}) {
    if (!founded_) return;
    changing_ = true;
    Changing c{generation_, std::move(lost), 0, 0};
    for (const Process& p : processes_) {
      c.joining += p.state == State::waiting ? 1 : 0;
      c.leaving += p.state == State::member && p.leaving ? 1 : 0;
    }
    for (const Process& p : processes_)
      if (p.state == State::member) send(p, c);
    try_issue();
  }
  void lose(Process& p, const std::string& why) {
    const bool was_member = p.state == State::member;
    const bool fatal = !o_.elastic && !(o_.servers_restart && p.member.role == Role::server);
    over_ = over_ || fatal;
    p.state = State::gone;
    p.why = error_message(p.member.name(), "a process of the job", "one that was given up: " + why, "");
    send(p, Refused{static_cast<int>(ExitCode::communication), p.why});
    decide(Decision::Kind::lost, p, why, fatal);
    if (!was_member) return;
    change({p.member});
  }
  void leave(Process& p, bool done) {
    if (done || p.state == State::waiting) {
      p.state = State::gone;
      p.done = true;
      decide(Decision::Kind::left, p);
      if (done && p.member.role == Role::worker) release_servers();
      if (changing_) try_issue();
      return;
    }
    if (std::exchange(p.leaving, true)) return;
    change();
  }
  // Servers serve workers: when the last of these is done, they are let go.
  void release_servers() {
    if (!founded_) return;
    for (const Process& p : processes_)
      if (p.member.role == Role::worker && p.state != State::gone) return;
    for (Process& p : processes_)
      if (p.state != State::gone) release(p);
  }
  void release(Process& p) {
    send(p, Released{});
    p.state = State::gone;
    p.done = true;
    decide(Decision::Kind::left, p);
  }
  void report(Process& p, const Report& r) {
    if (p.state != State::member || r.generation != generation_) return;
    p.reported = true;
    p.step = r.step;
    // It may know before the arbiter does that its generation cannot go on.
    if (!changing_) return change();
    try_issue();
  }
  void stands(Process& p, const Stands& s) {
    if (p.state != State::member || s.generation != generation_ || changing_ || p.standing) return;
    p.standing = true;
    for (const Process& q : processes_)
      if (q.state == State::member && !q.standing) return;
    for (const Process& q : processes_)
      if (q.state == State::member) send(q, Go{generation_});
    decisions_.push_back({Decision::Kind::standing, 0, {}, {}, generation_, false});
  }

  // Workers by age; servers by their number, which a server that comes back keeps.
  [[nodiscard]] static std::pair<Role, std::uint64_t> order(const Member& m) noexcept {
    return {m.role, m.role == Role::worker ? m.id : static_cast<std::uint64_t>(m.place)};
  }
  void try_issue() {
    if (!changing_ || over_) return;
    int workers = 0, servers = 0;
    for (const Process& p : processes_) {
      if (p.state == State::gone) continue;
      const bool worker = p.member.role == Role::worker;
      if (o_.reports && worker && p.state == State::member && !p.reported) return;
      if (!p.leaving) ++(worker ? workers : servers);
    }
    if (workers < o_.min_workers || (!o_.elastic && servers < o_.servers)) return;
    issue();
  }
  void issue() {
    ++generation_;
    changing_ = false;
    members_.clear();
    std::vector<Process*> now;
    const Process* first = nullptr;  // the authority
    for (Process& p : processes_) {
      if (p.state == State::member && p.leaving) release(p);
      if (p.state == State::gone) continue;
      now.push_back(&p);
    }
    std::sort(now.begin(), now.end(),
              [](const Process* a, const Process* b) { return order(a->member) < order(b->member); });
    for (const Process* p : now) {
      members_.push_back(p->member);
      if (p->member.role != Role::worker || p->state != State::member) continue;
      if (first == nullptr || p->step > first->step) first = p;
    }
    // The oldest where nobody has anything yet.
    if (first == nullptr) first = now.front();
    authority_ = first->member.id;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(o_.rank_timeout).count();
    for (Process* p : now) {
      p->state = State::member;
      p->reported = p->standing = false;
      send(*p, Issued{generation_, p->member.id, authority_, static_cast<std::uint32_t>(ms), members_});
    }
    decisions_.push_back({Decision::Kind::issued, 0, {}, {}, generation_, false});
  }

  ArbiterOptions o_;
  ProcessId next_id_ = 0, authority_ = 0;
  std::uint64_t generation_ = 0;
  bool founded_ = false, changing_ = false;
  bool over_ = false;                                 // a loss has ended the job: no generation any more
  std::vector<Process> processes_;                    // all that there ever were
  std::set<std::pair<Role, std::int32_t>> absent_{};  // founders that have not asked yet
  std::vector<Member> members_;
  std::map<Role, std::string> facts_;
  std::vector<Outgoing> out_;
  std::vector<Decision> decisions_;
};

}  // namespace tutti::control
