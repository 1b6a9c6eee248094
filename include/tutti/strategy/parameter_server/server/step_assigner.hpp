// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include <tutti/cluster/step_assignments.hpp>

namespace tutti::ps {

// Deals steps out to workers who come and go, see DealtSteps. What a worker who has left had not done comes first.
class StepDealer {
 public:
  using Deal = DealtSteps::Deal;

  [[nodiscard]] Deal deal(std::uint32_t worker, std::int64_t limit) {
    if (over_) return {Deal::What::over};
    std::int64_t number = next_;
    if (!returned_.empty() && *returned_.begin() < limit) {
      number = *returned_.begin();
      returned_.erase(returned_.begin());
    } else if (next_ < limit) {
      ++next_;
    } else {
      const bool at_work = std::any_of(dealt_.begin(), dealt_.end(), [](const auto& d) { return !d.second.empty(); });
      return {at_work ? Deal::What::wait : Deal::What::done};
    }
    dealt_[worker].insert(number);
    return {Deal::What::step, number};
  }
  void did(std::uint32_t worker, std::int64_t number) { dealt_[worker].erase(number); }
  void end_all() noexcept { over_ = true; }
  // It has left, is lost, or begins anew.
  void leave(std::uint32_t worker) {
    const auto its = dealt_.find(worker);
    if (its == dealt_.end()) return;
    returned_.merge(its->second);
    dealt_.erase(its);
  }

 private:
  std::int64_t next_ = 0;
  std::set<std::int64_t> returned_;
  std::map<std::uint32_t, std::set<std::int64_t>> dealt_;  // by worker, and not done yet
  bool over_ = false;
};

// How an answer travels: a step's number, or below 0 what else it is.
[[nodiscard]] inline std::int64_t encode(const DealtSteps::Deal& d) noexcept {
  return d.what == DealtSteps::Deal::What::step ? d.number : -static_cast<std::int64_t>(d.what);
}
[[nodiscard]] inline DealtSteps::Deal decode_deal(std::int64_t word) noexcept {  // of a number that travels
  using What = DealtSteps::Deal::What;
  if (word >= 0) return {What::step, word};
  return {word == -2 ? What::done : word == -3 ? What::over : What::wait};
}

}  // namespace tutti::ps
