// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>

#include "tools/trainer/options.hpp"

// Data that a process of an elastic job exchanges with the other processes, apart from training.
namespace tutti::trainer {

namespace detail {
inline constexpr const char* run_key = "run";  // key in the job's store: number of founders, and the run's folder
}

// Returns the channel of a process that tutti-launch --elastic has started; null in other processes and under mpirun.
[[nodiscard]] inline std::shared_ptr<ControlChannel> open_elastic_channel(const LaunchEnvironment& start) {
  if (!start.elastic || start.generation > 0) return nullptr;
  std::shared_ptr<ControlChannel> channel = ControlChannel::open();
  if (channel == nullptr)
    fail<UsageError>("environment TUTTI_ELASTIC", "the channel that tutti-launch --elastic gives to its processes",
                     "none", "start the job with tutti-launch --elastic, and no other program in between");
  return channel;
}

// Publishes the run for workers that join later.
inline void publish_run(ControlChannel& channel, const RunOptions& o) {
  channel.publish(detail::run_key, std::to_string(o.founders) + " " + o.run_dir);
}
// Reads the published run, so that a worker that joins derives its options as the first workers did.
inline void take_run(ControlChannel& channel, RunOptions& o) {
  const std::string said = channel.lookup(detail::run_key, std::chrono::minutes(10));
  const auto space = said.find(' ');
  const auto founders = tutti::detail::number_between(said.substr(0, space), 1, 1 << 20);
  if (!founders || space == std::string::npos)
    fail<CommunicationError>("control channel", "the number of first workers and the run's folder", "something else",
                             "install the same version of the program on all hosts");
  o.founders = *founders;
  o.run_dir = said.substr(space + 1);
}

}  // namespace tutti::trainer
