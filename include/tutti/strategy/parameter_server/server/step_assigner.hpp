// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include <tutti/cluster/step_assignments.hpp>

namespace tutti::ps {

// Assigns steps to workers that join and leave, see StepAssignments. It first assigns the unfinished steps of workers
// that have left.
class StepAssigner {
 public:
  using Reply = StepAssignments::Reply;

  [[nodiscard]] Reply assign(std::uint32_t worker, std::int64_t limit) {
    if (over_) return {Reply::Kind::over};
    std::int64_t number = next_;
    if (!returned_.empty() && *returned_.begin() < limit) {
      number = *returned_.begin();
      returned_.erase(returned_.begin());
    } else if (next_ < limit) {
      ++next_;
    } else {
      const bool at_work =
          std::any_of(assigned_.begin(), assigned_.end(), [](const auto& d) { return !d.second.empty(); });
      return {at_work ? Reply::Kind::wait : Reply::Kind::done};
    }
    assigned_[worker].insert(number);
    return {Reply::Kind::step, number};
  }
  void complete(std::uint32_t worker, std::int64_t number) { assigned_[worker].erase(number); }
  void end_all() noexcept { over_ = true; }
  // Call when a worker has left, is lost, or starts again: its unfinished steps are assigned to other workers.
  void leave(std::uint32_t worker) {
    const auto its = assigned_.find(worker);
    if (its == assigned_.end()) return;
    returned_.merge(its->second);
    assigned_.erase(its);
  }

 private:
  std::int64_t next_ = 0;
  std::set<std::int64_t> returned_;
  std::map<std::uint32_t, std::set<std::int64_t>> assigned_;  // unfinished steps, by worker
  bool over_ = false;
};

// Returns the form in which an answer is sent: a step's number, or a number below 0 for the other kinds of answer.
[[nodiscard]] inline std::int64_t encode(const StepAssignments::Reply& d) noexcept {
  return d.kind == StepAssignments::Reply::Kind::step ? d.number : -static_cast<std::int64_t>(d.kind);
}
[[nodiscard]] inline StepAssignments::Reply decode_assignment(std::int64_t word) noexcept {  // from the sent number
  using Kind = StepAssignments::Reply::Kind;
  if (word >= 0) return {Kind::step, word};
  return {word == -2 ? Kind::done : word == -3 ? Kind::over : Kind::wait};
}

}  // namespace tutti::ps
