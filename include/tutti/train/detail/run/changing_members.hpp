// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/step_flag.hpp>
#include <tutti/train/detail/run/run_members.hpp>

namespace tutti::detail {

// The common part of all kinds of runs with members that may change.
class ChangingMembers : public RunMembers {
 public:
  [[nodiscard]] bool may_change() const final { return true; }
  void epoch_begins() final {
    if (run_.strategy.rank() == 0) members_.epoch_begins(run_.at.epoch);
  }

 protected:
  ChangingMembers(RunParts& parts, ElasticMembership& members) : RunMembers(parts), members_(members) {}

  void ask_to_leave() {
    const auto& requested = run_.options.leave_requested;
    if (asked_to_leave_ || !requested || !requested()) return;
    asked_to_leave_ = true;
    members_.ask_to_leave();
  }
  // Returns the flag of a request to stop. Passes a request to leave to the membership.
  [[nodiscard]] std::uint32_t request_flags() {
    const std::uint32_t flags = members_.stop_requested() ? step_flag::stop : 0;
    ask_to_leave();
    return flags;
  }
  // Returns the flag of a change of members after a step of this batch. Throws CommunicationError if the generation is
  // broken.
  [[nodiscard]] std::uint32_t change_flag(const Batch& batch) {
    using Change = ElasticMembership::Change;
    const Change change = members_.change();
    if (change == Change::broken) fail<CommunicationError>("members", "those of the generation", "a change of them");
    return is_due(change, batch.last_of_epoch) ? step_flag::membership : 0;
  }
  // Returns whether the members change in order after a step.
  [[nodiscard]] static bool is_due(ElasticMembership::Change change, bool ends_epoch) {
    using Change = ElasticMembership::Change;
    return change == Change::after_step || (change == Change::after_epoch && ends_epoch);
  }
  // Returns whether the last step announced a change.
  [[nodiscard]] bool change_announced() const { return (run_.share.step.flags & step_flag::membership) != 0; }
  // Reports a change of members to the coordinator. Some members may have reached the current step only by taking the
  // state, and some members may have left. since: when the change began.
  void report_change(const Stopwatch& since) {
    const StepShare& step = run_.share.step;
    const int world = static_cast<int>(step.world);
    const CompletedStep closed{step.began,
                               step.number,
                               world,
                               step.batch,
                               run_.sources.train(),
                               since.seconds(),
                               parts_.schedule.global_batch(),
                               parts_.shares.bounds_of_step(world)};
    run_.coordinator.on_membership_change(step.number > 0 ? &closed : nullptr);
  }

  ElasticMembership& members_;
  bool asked_to_leave_ = false;

 private:
  [[nodiscard]] std::int64_t generation() const final {
    return static_cast<std::int64_t>(run_.strategy.membership().generation);
  }
};

}  // namespace tutti::detail
