// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include <tutti/dist/any_strategy.hpp>

#include "options.hpp"

// The strategies of this build, compiled once for all programs.
namespace tutti::cuda {
class Device;
}

namespace tutti::examples {

// How a launcher started this process.
struct Launched {
  int processes = 1;
  int on_this_host = 1;
  int local_rank = 0;
};
Launched launched();

// Their words on the command line.
std::vector<std::string> built_strategies();

// The strategy that checked options name. device: this process's GPU, which strategy nccl needs and which must outlive
// it.
AnyStrategy make_strategy(const RunOptions& options, const cuda::Device* device = nullptr);

}  // namespace tutti::examples
