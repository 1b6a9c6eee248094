// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/arbiter/arbiter_options.hpp>
#include <tutti/cluster/arbiter/candidate.hpp>
#include <tutti/cluster/channel/control_messages.hpp>

namespace tutti::control {

// The members that the next generation of the arbiter (arbiter.hpp) would have.
struct NextGeneration {
  std::vector<Candidate*> members{};  // workers by age, then servers by their number
  int servers = 0;                    // number of servers among the members
  bool too_few = false;               // there are too few workers
};

namespace detail {

// Returns whether members still prepare their state. Until it is ready, no worker joins.
[[nodiscard]] inline bool preparing(const std::vector<Candidate>& all) {
  return any_candidate(all, [](const Candidate& c) { return c.state == Candidate::State::member && c.preparing; });
}
// Returns whether a newcomer may join. Founders begin the run in the first generation that they form. Until then they
// have no state for a newcomer, which would wait for one while the founders do other operations.
[[nodiscard]] inline bool founders_have_begun(const std::vector<Candidate>& all) {
  const auto begun = [](const Candidate& c) { return c.is(Role::worker) && c.holds; };
  const auto founds = [](const Candidate& c) { return c.is(Role::worker) && !c.newcomer; };
  return any_candidate(all, begun) || !any_candidate(all, founds);
}
// at_once: processes join although the epoch has not ended. keep: no member leaves, because the members that would stay
// do not have the trained state.
[[nodiscard]] inline std::vector<Candidate*> next_members(std::vector<Candidate>& all, const ArbiterOptions& o,
                                                          bool at_once, bool keep) {
  using State = Candidate::State;
  const bool epoch_end = !o.at_epoch || !o.reports || !any_candidate(all, [](const Candidate& c) {
    return c.is(Role::worker) && c.state == State::member && !c.epoch_end;
  });
  const bool lets_in = (at_once || epoch_end) && !preparing(all), begun = !o.reports || founders_have_begun(all);
  return order_members(all, [&](const Candidate& c) {
    const bool leaves = c.leaving && !keep && (epoch_end || !c.leaves_at_epoch);
    return !leaves && (c.state == State::member || c.is(Role::server) || (lets_in && (begun || !c.newcomer)));
  });
}
[[nodiscard]] inline int workers_of(const std::vector<Candidate*>& members) {
  return static_cast<int>(
      std::count_if(members.begin(), members.end(), [](const Candidate* c) { return c->is(Role::worker); }));
}

}  // namespace detail

// Returns the members of the next generation. least: the smallest number of workers.
[[nodiscard]] inline NextGeneration next_generation(std::vector<Candidate>& all, const ArbiterOptions& o, int least) {
  using detail::workers_of;
  const auto stays = [](const Candidate* c) { return c->state == Candidate::State::member && c->is(Role::worker); };
  // A member lacks the state if it has joined, and its group has not formed yet.
  const auto keeps = [&](const Candidate* c) { return stays(c) && (o.servers_hold || c->has_state()); };
  NextGeneration next{detail::next_members(all, o, false, false)};
  auto& members = next.members;
  const bool few = workers_of(members) < least;
  if (few) members = detail::next_members(all, o, true, false);
  const bool preparing = detail::preparing(all), founding = o.reports && !detail::founders_have_begun(all);
  if ((workers_of(members) > 0 || preparing || founding) && std::none_of(members.begin(), members.end(), keeps))
    members = detail::next_members(all, o, few || std::none_of(members.begin(), members.end(), stays), true);
  next.servers = static_cast<int>(members.size()) - workers_of(members);
  // Counts workers that will join after the preparation of the state, or when the founders have formed a group.
  const auto later = [&](const Candidate& c) {
    return c.is(Role::worker) && c.state == Candidate::State::waiting && (preparing || c.newcomer);
  };
  const auto coming = preparing || founding ? std::count_if(all.begin(), all.end(), later) : 0;
  next.too_few = workers_of(members) == 0 || workers_of(members) + coming < least;
  return next;
}

// When the next generation begins: not at all, after an epoch, after a step, or at once because the group is broken.
enum class Urgency { none, epoch, step, broken };

// Adds the processes that want to join and to leave to `c`. Returns the highest urgency of these changes.
[[nodiscard]] inline Urgency count_changes(const std::vector<Candidate>& all, const ArbiterOptions& o,
                                           MembershipChange& c) {
  Urgency level = Urgency::none;
  for (const Candidate& p : all) {
    const bool joins = p.state == Candidate::State::waiting;
    const bool leaves = p.state == Candidate::State::member && p.leaving;
    c.joining += joins ? 1 : 0;
    c.leaving += leaves ? 1 : 0;
    if (joins) level = std::max(level, o.at_epoch && p.is(Role::worker) ? Urgency::epoch : Urgency::step);
    if (leaves) level = std::max(level, p.leaves_at_epoch ? Urgency::epoch : Urgency::step);
  }
  return level;
}

// Returns whether the job continues without `p`: other processes do its work, or `p` can be started again.
[[nodiscard]] inline bool can_lose(const std::vector<Candidate>& all, const ArbiterOptions& o, const Candidate& p) {
  if (p.member.role == Role::worker) return o.elastic;
  if (o.servers_restart || !o.elastic) return o.servers_restart;
  return !o.servers_hold && any_candidate(all, [&](const Candidate& q) { return &q != &p && q.is(Role::server); });
}

// Returns whether members may leave although too few workers would remain for a generation: if another member has the
// trained state, or if no other worker is expected. others_may_come: new workers may replace lost ones.
[[nodiscard]] inline bool may_leave(const std::vector<Candidate>& all, const ArbiterOptions& o, bool others_may_come) {
  const bool kept = any_candidate(all, [&](const Candidate& c) {
    return c.state == Candidate::State::member && !c.leaving && (o.servers_hold || c.has_state());
  });
  return kept ||
         (!others_may_come && !any_candidate(all, [](const Candidate& c) { return c.is(Role::worker) && !c.leaving; }));
}

// Returns whether only workers that were asked to leave have the state, and no other worker can take it: the others
// were lost meanwhile.
[[nodiscard]] inline bool must_stop(const std::vector<Candidate>& all, bool others_may_come) {
  return !others_may_come && any_candidate(all, [](const Candidate& c) {
    return c.is(Role::worker) && c.state == Candidate::State::member && c.leaving;
  }) && !any_candidate(all, [](const Candidate& c) { return c.is(Role::worker) && !c.leaving; });
}

// Returns the member that sends its state to all others: the oldest of the members with the most steps, or the oldest
// of all members if no member has trained yet.
[[nodiscard]] inline ProcessId authority_of(const std::vector<Candidate*>& members) {
  const Candidate* first = nullptr;
  for (const Candidate* c : members) {
    if (c->member.role != Role::worker || c->state != Candidate::State::member) continue;
    if (first == nullptr || c->step > first->step) first = c;
  }
  return (first == nullptr ? members.front() : first)->member.id;
}

// Returns a message that names up to three of the processes that have not arrived yet.
[[nodiscard]] inline Waiting waiting_for(const std::set<std::pair<Role, std::int32_t>>& absent) {
  constexpr std::size_t most = 3;
  std::string missing;
  std::size_t shown = 0;
  for (const auto& [role, place] : absent)
    if (++shown <= most) missing += (missing.empty() ? "" : ", ") + Member{0, role, place, ""}.name();
  if (absent.size() > most) missing += " and " + std::to_string(absent.size() - most) + " more";
  return {missing};
}

}  // namespace tutti::control
