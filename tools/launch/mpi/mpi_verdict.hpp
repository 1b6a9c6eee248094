// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include <tutti/core/error.hpp>

#include "tools/launch/job/job_verdict.hpp"

// Interprets how the ranks of one mpirun ended, for jobs that may continue with other ranks.
namespace tutti::launch {

// Returns whether the rank did its work, or restarts for a change of members.
[[nodiscard]] inline bool in_order(const ProcessExit& e) {
  return e.good() || (!e.end.by_signal && e.end.code == static_cast<int>(ExitCode::restart));
}

// Returns the ends, with exit code 75 (restart) changed to success.
[[nodiscard]] std::vector<ProcessExit> done_in_order(std::vector<ProcessExit> all);

// Returns whether the job must end, because a restart would fail the same way: wrong options, a loss that is not
// finite, or a stop by the user.
[[nodiscard]] bool ends_job(const std::vector<ProcessExit>& all);

// Returns the processes that failed by themselves. mpirun ends the other ranks, unless they noticed the failure first
// and exited with code 5. A rank with code 5 is never blamed, and a rank
// that vanished is blamed only if no rank failed by itself.
[[nodiscard]] std::vector<ProcessExit> culprits_of(const std::vector<ProcessExit>& all);

}  // namespace tutti::launch
