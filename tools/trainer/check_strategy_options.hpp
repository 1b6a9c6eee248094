// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/trainer/options.hpp"

// Checks options and variables about how ranks work together. Refuses or notes those that have no effect with the
// strategy.
namespace tutti::trainer {

namespace detail {

// An option that is not at its default, and the strategies that use it.
struct StrategyOption {
  const char* name;
  bool given;
  std::string value;
  const char* hint;  // for strategy nccl; null: it acts there
};

std::vector<StrategyOption> strategy_options(const RunOptions& o);

// said: the strategy that the user gave, or "auto". lone: there is one worker, and no other one may join.
void check_strategy_options(RunOptions& o, const std::string& said, bool lone);

// Returns the threshold above which a gradient is sent in two bits, on the scale of the sent gradients: those of the
// mean loss of all workers' images times the loss scale. --gc-threshold applies to a worker's sum, as in MXNet. 0 means
// no compression.
[[nodiscard]] float gradient_threshold(const RunOptions& o);

}  // namespace detail

// Applies Horovod's variables, after check(). `variables`: names, without HOROVOD_, and values.
void apply_horovod_variables(RunOptions& o, const std::vector<std::pair<std::string, std::string>>& variables,
                             int processes);

// Notes the variables of MXNet's parameter servers that have no effect here, after check(). `set`: the names of all
// variables that are set.
void note_ps_variables(RunOptions& o, const std::vector<std::string>& set);

}  // namespace tutti::trainer
