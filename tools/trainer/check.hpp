// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include <tutti/backends/make.hpp>

#include "tools/trainer/options.hpp"

// What options mean together. Every error is a UsageError that names the option.
namespace tutti::trainer {

// What a run was started as.
struct StartedJob {
  int processes = 1;                       // how many a launcher started
  std::vector<std::string> built{"solo"};  // the strategies of this build
  bool gpu = false;                        // there is one for this process, and the build can use it
  int servers = 0;                         // that were started beside them
  bool elastic = false;                    // processes come and go
  bool over_mpi = false;                   // mpirun starts them
  bool cuda_built = true;                  // the build has the backend for GPUs
};

namespace detail {

void check_backend(RunOptions& o);

// Strategies whose members stay cannot follow what tutti-launch --elastic does.
void check_elastic(RunOptions& o, const StartedJob& job);

}  // namespace detail

// Checks every value, brings each word into its first spelling, and fills in what was left open.
void check(RunOptions& o, StartedJob job = {});

}  // namespace tutti::trainer
