// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/train/detail/run/changing_members.hpp>

namespace tutti::detail {

// Members of a job in which each generation has new processes (ElasticMembership::restarts_processes). For a change of
// members, all processes save and end after the same step, and new processes continue from the checkpoint.
class RestartedMembers final : public ChangingMembers {
 public:
  RestartedMembers(RunParts& parts, ElasticMembership& members) : ChangingMembers(parts, members) {}

  [[nodiscard]] bool begin() override {
    if (!run_.coordinator.saves())
      fail<UsageError>("fit", "checkpoints, from which other processes go on when the members change", "none");
    make_sources();
    try {
      (void)start();
      return true;
    } catch (const CommunicationError&) {
      if (!members_.await_lease()) throw;
      return false;
    }
  }
  [[nodiscard]] std::uint32_t flags(const Batch& batch) override {
    const std::uint32_t requests = request_flags();
    return requests | change_flag(batch);
  }
  [[nodiscard]] bool go_on() override {
    if (!change_announced()) return true;
    if (all_leave()) {
      parts_.checkpoints.stop();
      return true;
    }
    parts_.checkpoints.save_unless_saved();
    run_.result.left = asked_to_leave_;
    run_.result.changes = run_.over = true;
    return true;
  }

 private:
  // Returns true if all members leave. All ranks call it.
  [[nodiscard]] bool all_leave() {
    // Asks again: the request may have arrived after this step began, and the next generation would not know of it.
    ask_to_leave();
    double leaving = asked_to_leave_ ? 1 : 0;
    run_.strategy.sum({&leaving, 1});
    return math::llround(leaving) == run_.strategy.size();
  }
};

}  // namespace tutti::detail
