// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "tools/launch/agent/rank_process.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/job/job_verdict.hpp"

namespace tutti::launch {

[[nodiscard]] std::string describe(const End& end);

// Returns the problem to report for the process that caused the end. last_report: its last known position. elastic: the
// other workers would have continued if a process with the trained weights had remained.
[[nodiscard]] Problem problem_of(const ProcessExit& blamed, const std::string& last_report, bool elastic);

// Returns the problem of a host whose agent ended its processes, because it got no message of the launcher for
// `seconds`.
[[nodiscard]] Problem unheard_launcher(const std::string& host, double seconds);

// Returns the problem of a job that another program ended, or an agent that got no message of the launcher for
// `seconds`.
[[nodiscard]] Problem problem_of_outside(const ProcessExit& e, double seconds);

}  // namespace tutti::launch
