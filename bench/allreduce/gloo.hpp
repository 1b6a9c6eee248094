// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/backends/gloo/job.hpp>
#include <tutti/cluster/channel/channel_store.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/core/error.hpp>

#include "arguments.hpp"
#include "memory.hpp"
#include "sweep.hpp"

// Runs the sweep over Gloo, in processes of tutti-launch.
namespace tutti::bench {

inline int over_gloo(const Args& a, const LaunchEnvironment& start) {
  const auto channel = ControlChannel::open();
  if (channel == nullptr)
    fail<UsageError>("--comm gloo", "tutti-launch, which provides the channel between the processes",
                     "another launcher", "tutti-launch -n 4 allreduce --comm gloo");
  ChannelStore store(*channel);
  std::deque<InterruptFlag> flags;  // one for each group
  GlooJobOptions usual;
  usual.deadline = std::chrono::seconds(120);
  const GlooOptions job = gloo_options(channel->enrol(start, JobFacts{}, std::chrono::seconds(60)), usual);
  std::vector<std::unique_ptr<GlooEngine>> engines;
  const Memory own(a.max);
  std::vector<Way> ways;
  for (const std::string mode : {"shm", "plain", "tree"}) {
    if (a.mode != "all" && a.mode != mode) continue;
    GlooOptions o = job;
    o.prefix += "/" + mode;
    o.shared_memory = mode != "plain";
    for (std::size_t r = 0; mode == "tree" && r < o.hosts.size(); ++r) o.hosts[r] += r < o.hosts.size() / 2 ? "a" : "b";
    GlooEngine& e = *engines.emplace_back(std::make_unique<GlooEngine>(o, store, flags.emplace_back()));
    if (e.rank() == 0) std::printf("# %s: %s\n", mode.c_str(), e.name().c_str());
    const auto window = e.allocate(a.max, in_time());
    const std::span<float> data =
        window.empty() ? own.floats() : std::span<float>(reinterpret_cast<float*>(window.data()), a.max / 4);
    ways.push_back({mode, data, [&e](std::span<float> d) {
                      e.all_reduce(DType::f32, std::as_writable_bytes(d), ReduceOp::sum, in_time(), "all_reduce");
                    }});
  }
  GlooEngine& e = *engines.front();
  const auto collect = [&](const std::vector<double>& mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(e.size()));
    e.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), in_time(), "times");
    return all;
  };
  sweep(a, {e.rank(), e.size(), ways, [&] { e.barrier(in_time(), "barrier"); }, collect});
  return 0;
}

}  // namespace tutti::bench
