// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include <tutti/backends/make.hpp>

#include "tools/trainer/options.hpp"

// Checks combinations of options. Every error is a UsageError that names the option.
namespace tutti::trainer {

// How the processes of a run were started.
struct StartedJob {
  int processes = 1;                       // number of processes that a launcher started
  std::vector<std::string> built{"solo"};  // the strategies of this build
  bool gpu = false;                        // this process has a GPU, and the build can use it
  int servers = 0;                         // servers that were started with the workers
  bool elastic = false;                    // processes may join and leave
  bool over_mpi = false;                   // mpirun starts the processes
  bool cuda_built = true;                  // the build has the backend for GPUs
};

namespace detail {

void check_backend(RunOptions& o);

// Refuses tutti-launch --elastic for strategies with fixed members.
void check_elastic(RunOptions& o, const StartedJob& job);

}  // namespace detail

// Checks every value, brings each word into its standard spelling, and fills in defaults.
void check(RunOptions& o, StartedJob job = {});

}  // namespace tutti::trainer
