// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "tools/launch/agent/rank_process.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/job/job_verdict.hpp"

namespace tutti::launch {

[[nodiscard]] std::string describe(const End& end);

// The problem that is reported for the process that caused the end. last_report: its last known position. elastic: the
// others would have gone on, if any of them still held what was trained.
[[nodiscard]] Problem problem_of(const ProcessExit& blamed, const std::string& last_report, bool elastic);

// The problem of a host whose agent did not hear of the launcher for `seconds`, and ended its processes.
[[nodiscard]] Problem unheard_launcher(const std::string& host, double seconds);

// The problem of a job whose process another program ended, or an agent that did not hear of the launcher for
// `seconds`.
[[nodiscard]] Problem problem_of_outside(const ProcessExit& e, double seconds);

}  // namespace tutti::launch
