// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include <tutti/core/error.hpp>

#include "tools/launch/job/job_verdict.hpp"

// What the ends of the ranks of one mpirun say, where others may go on.
namespace tutti::launch {

// It has done its work, or makes way for others.
[[nodiscard]] inline bool in_order(const ProcessExit& e) {
  return e.good() || (!e.end.by_signal && e.end.code == static_cast<int>(ExitCode::restart));
}

// Who only made way has done nothing wrong.
[[nodiscard]] std::vector<ProcessExit> done_in_order(std::vector<ProcessExit> all);

// What others would only do again: options that are wrong, a loss that is not finite, a stop that all were told of.
[[nodiscard]] bool ends_job(const std::vector<ProcessExit>& all);

// Who failed of itself. mpirun then ended the others, unless these had noticed first and given up (exit code 5): whom
// nobody else explains is not blamed.
[[nodiscard]] std::vector<ProcessExit> culprits_of(const std::vector<ProcessExit>& all);

}  // namespace tutti::launch
