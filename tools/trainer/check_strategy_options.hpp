// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/trainer/options.hpp"

// Options and variables about how ranks work together, where the strategy has a use for them; where it has none they
// are refused or named.
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

// said: the strategy as it was asked for, "auto" if it was not. lone: there is one worker, and no other one may join.
void check_strategy_options(RunOptions& o, const std::string& said, bool lone);

// What it takes to send a gradient in two bits, in the measure of what is sent, which are gradients of the mean loss of
// all workers' images times the loss scale; --gc-threshold is, as MXNet's, about a worker's sum. 0: they go as they
// are.
[[nodiscard]] float gradient_threshold(const RunOptions& o);

}  // namespace detail

// What Horovod's variables mean here, after check(). `variables`: names, without HOROVOD_, and values.
void apply_horovod_variables(RunOptions& o, const std::vector<std::pair<std::string, std::string>>& variables,
                             int processes);

// Names the variables of MXNet's parameter servers that mean nothing here, after check(). `set`: by name, of all that
// are set.
void note_ps_variables(RunOptions& o, const std::vector<std::string>& set);

}  // namespace tutti::trainer
