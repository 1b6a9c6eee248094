// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/any_strategy.hpp>

namespace tutti::detail {

// Runs f, which contains what all ranks do together before they train. If the members may change and one is lost during
// the call, the remaining ranks run f again. Returns false if this process has left the job.
template <class F>
[[nodiscard]] bool prepare_together(AnyStrategy& strategy, F&& f) {
  for (;;) {
    const int ranks = strategy.size();
    try {
      f();
      return true;
    } catch (const CommunicationError&) {
      ElasticMembership* const members = strategy.members();
      if (members == nullptr || members->restarts_processes() || members->joining() || !members->await_lease()) throw;
      if (!members->next_generation({.step = 0, .broken = true, .preparing = true})) return false;
      if (strategy.size() >= ranks) throw;  // no member was lost
    }
  }
}

}  // namespace tutti::detail
