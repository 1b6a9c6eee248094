// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/strategy/any_strategy.hpp>

#include "tools/trainer/options.hpp"
#include "tools/trainer/task.hpp"

// A training program on one backend, from checked options to the exit code.
namespace tutti::trainer {

// Trains, evaluates or prints information, as the options say. before: the data that load() has already read. channel:
// the channel of a process of an elastic job.
int run(Backend& backend, AnyStrategy& strategy, RunOptions& o, const Task& task, std::optional<Loaded> before = {},
        ControlChannel* channel = nullptr);

}  // namespace tutti::trainer
