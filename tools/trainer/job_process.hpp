// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include <tutti/backends/make/strategy.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/engine/backend.hpp>

#include "tools/trainer/options.hpp"
#include "tools/trainer/scripted.hpp"
#include "tools/trainer/task.hpp"

// The processes of a job of a training program: ranks, servers and the scheduler. Each function returns the exit code.
namespace tutti::trainer {

struct Job {
  Backend* gpu = nullptr;                   // GPU of this process; needed by strategy nccl
  std::shared_ptr<ControlChannel> channel;  // channel of a process of an elastic job
};

[[nodiscard]] StrategyOptions strategy_options(const RunOptions& o, const Started& start);

// Trains or evaluates as one rank.
[[nodiscard]] int run_rank(RunOptions& o, const Task& task, const Started& start, const Job& job);

[[nodiscard]] int serve(RunOptions& o, const Task& task, const Started& start, const Job& job);

[[nodiscard]] int schedule(const RunOptions& o, const Started& start);

}  // namespace tutti::trainer
