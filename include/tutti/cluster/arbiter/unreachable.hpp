// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/cluster/arbiter/candidate.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/channel/lease.hpp>

// The rule by which the arbiter (arbiter.hpp) removes one of two processes that cannot reach each other from the job.
namespace tutti::control {

// A member. The last two fields are set if it has waited in an operation for longer than the time-out.
struct BlockedMember {
  ProcessId id = 0;
  Role role = Role::worker;
  bool spare = true;                   // the job can continue without it
  std::uint64_t operation = 0;         // the operation in which it waits; 0: it has not reported that it waits
  std::vector<ProcessId> unreachable;  // the members that it cannot reach
  bool reported = false;               // it has left the generation, and waits for the next one
};

using CutPair = std::pair<ProcessId, ProcessId>;

// Returns the pairs that are cut: both processes wait, and each reports that it cannot reach the other one. Their
// operations may differ: one process has received everything in an operation and waits in the next one, while the other
// process still lacks the last message of the first operation. A server always waits for its workers and sends no
// report, so the report of the worker is enough. Nor does a member that has left the generation, while the other one
// still lacks its last message.
[[nodiscard]] inline std::vector<CutPair> cut_pairs(const std::vector<BlockedMember>& all) {
  const auto names = [](const BlockedMember& a, const BlockedMember& b) {
    return a.operation != 0 && std::find(a.unreachable.begin(), a.unreachable.end(), b.id) != a.unreachable.end();
  };
  std::vector<CutPair> pairs;
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t k = i + 1; k < all.size(); ++k) {
      const BlockedMember &a = all[i], &b = all[k];
      const bool one_is_enough = a.role != b.role || a.reported || b.reported;
      const bool cut = one_is_enough ? names(a, b) || names(b, a) : names(a, b) && names(b, a);
      if (cut) pairs.emplace_back(a.id, b.id);
    }
  return pairs;
}

// A member that is to be removed, and one of the members that it cannot reach.
struct EvictedMember {
  ProcessId id = 0, other = 0;
};

// Returns the member to remove: of the members of cut pairs, the one in the most cut pairs, and of equal ones the
// youngest. It returns a member that the job cannot lose only if the job can lose no member of a cut pair. Returns no
// value if no pair is cut. Call it again with the remaining members until it returns no value.
[[nodiscard]] inline std::optional<EvictedMember> choose_evicted(const std::vector<BlockedMember>& all) {
  const std::vector<CutPair> pairs = cut_pairs(all);
  const auto in = [](const CutPair& p, ProcessId id) { return p.first == id || p.second == id; };
  const auto cuts = [&](const BlockedMember& w) {
    return std::count_if(pairs.begin(), pairs.end(), [&](const CutPair& p) { return in(p, w.id); });
  };
  const auto order = [&](const BlockedMember& w) { return std::tuple(w.spare, cuts(w), w.id); };
  const BlockedMember* goes = nullptr;
  for (const BlockedMember& w : all)
    if (cuts(w) > 0 && (goes == nullptr || order(w) > order(*goes))) goes = &w;
  if (goes == nullptr) return {};
  const CutPair of = *std::find_if(pairs.begin(), pairs.end(), [&](const CutPair& p) { return in(p, goes->id); });
  return EvictedMember{goes->id, of.first == goes->id ? of.second : of.first};
}

// Decides when the arbiter applies the rule: shortly after the first report, because all members of a cut pair report
// it at nearly the same time, and the rule needs all reports. The rule is applied again after each change of its
// inputs.
class UnreachableTimer {
 public:
  explicit UnreachableTimer(Time rank_timeout)
      : delay_(std::min<Time>(rank_timeout / 10, std::chrono::milliseconds(500))) {}

  // Stores the report of a member.
  void take(Candidate& c, const UnreachablePeers& u, Time now) {
    c.operation = u.members.empty() ? 0 : u.operation;
    c.unreachable = u.members;
    if (due_ == Time::max() && !u.members.empty()) due_ = now + delay_;
  }
  // Call after a member has left the generation or the job: one report is now enough for its pairs, and no member
  // repeats a report.
  void apply_again(const std::vector<Candidate>& all, Time now) {
    const auto waits = [](const Candidate& c) {
      return c.state == Candidate::State::member && !c.reported && !c.unreachable.empty();
    };
    if (due_ == Time::max() && std::any_of(all.begin(), all.end(), waits)) due_ = now + delay_;
  }
  // Call after a pause of the arbiter: members may still have reports to send.
  void postpone(Time now) noexcept {
    if (due_ != Time::max()) due_ = now + delay_;
  }
  // Returns true if the rule is to be applied now, and only once for each delay.
  [[nodiscard]] bool is_due(Time now) noexcept {
    if (now < due_) return false;
    due_ = Time::max();
    return true;
  }

 private:
  Time delay_, due_ = Time::max();
};

// Returns the members in the form that the rule needs. can_lose(candidate): the job can continue without it.
template <class F>
[[nodiscard]] std::vector<BlockedMember> blocked_members(const std::vector<Candidate>& all, F&& can_lose) {
  std::vector<BlockedMember> list;
  for (const Candidate& c : all)
    if (c.state == Candidate::State::member)
      list.push_back({c.member.id, c.member.role, can_lose(c), c.operation, c.unreachable, c.reported});
  return list;
}
// Returns whether a member still lacks the last message of a process that it cannot reach, and that has completed its
// work and left. That process sends nothing again, so the members must repeat the operation without it.
[[nodiscard]] inline bool waits_for_left(const std::vector<Candidate>& all) {
  const auto in = [](const Candidate& c) { return c.state == Candidate::State::member; };
  const auto has_left = [&](ProcessId id) {
    return std::none_of(all.begin(), all.end(), [&](const Candidate& c) { return in(c) && c.member.id == id; });
  };
  return std::any_of(all.begin(), all.end(), [&](const Candidate& c) {
    return in(c) && !c.reported && c.operation != 0 &&
           std::any_of(c.unreachable.begin(), c.unreachable.end(), has_left);
  });
}

}  // namespace tutti::control
