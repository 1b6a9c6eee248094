// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/scripted_job.hpp>

#include "tools/trainer/options.hpp"

// How a process was started, by a launcher or by a script.
namespace tutti::trainer {

struct Started : LaunchEnvironment {
  std::optional<ScriptedJob> scripted;  // that scripts start one process at a time
};

namespace detail {

// This host's address towards another one, as the system would choose it; nothing is sent.
std::string address_towards(const HostPort& other);

}  // namespace detail

// How this process was started. UsageError for what does not go together.
Started how_started(const RunOptions& o);

}  // namespace tutti::trainer
