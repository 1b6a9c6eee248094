// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/job/job_output.hpp"
#include "tools/launch/job/plan.hpp"
#include "tools/launch/job/progress_board.hpp"

// Completes the launcher's options before the job begins, and checks for stalls while it runs.
namespace tutti::launch {

// Asks the program how its processes should be started, and completes options and plan with the answer.
void resolve_launcher(Options& o, Plan& plan, const SignalQueue& signals, JobOutput& output);

// A problem that ends the job because a process makes no progress. blamed: the name of the process.
struct StallProblem {
  std::string blamed{};
  Problem problem{};
};

[[nodiscard]] std::optional<StallProblem> stalled_problem(ProgressBoard& board, const Options& o, JobOutput& output);

}  // namespace tutti::launch
