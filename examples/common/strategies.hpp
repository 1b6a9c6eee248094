// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include <tutti/dist/any_strategy.hpp>
#include <tutti/dist/launch_environment.hpp>

#include "options.hpp"

// The strategies of this build, compiled once for all programs.
namespace tutti::cuda {
class Device;
}

namespace tutti::examples {

// How this process was started, as a worker; UsageError for anything else.
LaunchEnvironment launched();

// Their words on the command line.
std::vector<std::string> built_strategies();

// The strategy that checked options name, for processes that were started so; it has as many ranks. device: this
// process's GPU, which strategy nccl needs and which must outlive it.
AnyStrategy make_strategy(const RunOptions& options, const LaunchEnvironment& start,
                          const cuda::Device* device = nullptr);

}  // namespace tutti::examples
