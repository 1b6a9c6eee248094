// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/host/job_state.hpp"
#include "tools/launch/host/process.hpp"
#include "tools/launch/job/plan.hpp"

namespace tutti::launch {

// Returns the call of Open MPI's mpirun. It starts each process through `tutti-launch --exec-rank`, which reads its
// order from the job's folder on its host. So no variable and no argument of the job is on a command line.
[[nodiscard]] Start mpirun_start(const Plan& plan, const Options& o, const fs::path& folder);

// Returns the rank that a line of mpirun's output blames, or nullopt.
[[nodiscard]] std::optional<int> rank_that_mpirun_blames(std::string_view line);

}  // namespace tutti::launch
