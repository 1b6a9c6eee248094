// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/job/job_output.hpp"
#include "tools/launch/job/plan.hpp"
#include "tools/launch/job/progress_board.hpp"

// What the launcher finds out before the job begins, and what it watches for while it runs.
namespace tutti::launch {

// Asks the program how its processes are to be started, and completes options and plan by that.
void resolve_launcher(Options& o, Plan& plan, const SignalQueue& signals, JobOutput& output);

// Warns of a process that stands still, and says what ends the job when that lasts too long.
struct StallProblem {
  std::string blamed{};
  Problem problem{};
};

[[nodiscard]] std::optional<StallProblem> stalled_problem(ProgressBoard& board, const Options& o, JobOutput& output);

}  // namespace tutti::launch
