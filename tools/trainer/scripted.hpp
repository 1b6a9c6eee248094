// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/scripted_job.hpp>

#include "tools/trainer/options.hpp"

// Finds out how a process was started, by a launcher or by a script.
namespace tutti::trainer {

struct Started : LaunchEnvironment {
  std::optional<ScriptedJob> scripted;  // set if scripts start the processes of the job one by one
};

namespace detail {

// Returns the address of this host that the system would use to reach `other`. Sends no packets.
std::string address_towards(const HostPort& other);

}  // namespace detail

// Returns how this process was started. Throws UsageError for options and variables that contradict each other.
Started how_started(const RunOptions& o);

}  // namespace tutti::trainer
