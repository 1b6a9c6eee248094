// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/job/control_messages.hpp>

// The rule by which the arbiter (membership.hpp) gives up one of two processes that do not reach each other.
namespace tutti::control {

// A process that has waited in an operation of its generation for longer than the time-out, or that is named by one.
struct Waiter {
  ProcessId id = 0;
  Role role = Role::worker;
  bool spare = true;                 // the job can go on without it
  std::uint64_t operation = 0;       // in which it waits; 0: it does not say that it waits
  std::vector<ProcessId> unreached;  // those that it does not reach
};

using CutPair = std::pair<ProcessId, ProcessId>;

// The pairs that are cut: both processes wait in the same operation, and each says that it does not reach the other. A
// server waits for its workers all the time and says nothing, so the word of the worker is enough.
[[nodiscard]] inline std::vector<CutPair> cut_pairs(const std::vector<Waiter>& all) {
  const auto names = [](const Waiter& a, const Waiter& b) {
    return a.operation != 0 && std::find(a.unreached.begin(), a.unreached.end(), b.id) != a.unreached.end();
  };
  std::vector<CutPair> pairs;
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t k = i + 1; k < all.size(); ++k) {
      const Waiter &a = all[i], &b = all[k];
      const bool one_serves = a.role != b.role;
      const bool cut =
          one_serves ? names(a, b) || names(b, a) : a.operation == b.operation && names(a, b) && names(b, a);
      if (cut) pairs.emplace_back(a.id, b.id);
    }
  return pairs;
}

// A member that is given up, with one of those that it does not reach.
struct GivenUp {
  ProcessId id = 0, other = 0;
};

// Of all members that are cut from another one: that which fewest reach, and of these the youngest. A member that the
// job cannot go on without stays, if the other one of its pair can go. Nothing if no pair is cut. Call it again with
// those that are left, until no pair is.
[[nodiscard]] inline std::optional<GivenUp> choose_given_up(const std::vector<Waiter>& all) {
  const std::vector<CutPair> pairs = cut_pairs(all);
  const auto in = [](const CutPair& p, ProcessId id) { return p.first == id || p.second == id; };
  const auto cuts = [&](const Waiter& w) {
    return std::count_if(pairs.begin(), pairs.end(), [&](const CutPair& p) { return in(p, w.id); });
  };
  const auto order = [&](const Waiter& w) { return std::tuple(w.spare, cuts(w), w.id); };
  const Waiter* goes = nullptr;
  for (const Waiter& w : all)
    if (cuts(w) > 0 && (goes == nullptr || order(w) > order(*goes))) goes = &w;
  if (goes == nullptr) return {};
  const CutPair of = *std::find_if(pairs.begin(), pairs.end(), [&](const CutPair& p) { return in(p, goes->id); });
  return GivenUp{goes->id, of.first == goes->id ? of.second : of.first};
}

}  // namespace tutti::control
