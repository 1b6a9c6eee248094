// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <tutti/backends/gloo/gloo.hpp>
#include <tutti/backends/gloo/job.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/process_windows.hpp>
#include <tutti/job/channel_store.hpp>
#include <tutti/job/control_channel.hpp>
#include <tutti/job/control_messages.hpp>
#include <tutti/job/job_reach.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/elastic.hpp>

// Gloo's groups of a job whose members come and go.
namespace tutti {

namespace detail {
struct GlooOfGeneration {
  GlooOfGeneration(const Assignment& a, const GlooJobOptions& o, ControlChannel& channel, InterruptFlag& flag,
                   JobReach& reach)
      : store(channel), gloo(gloo_options(a, o, reach), store, flag) {}
  ChannelStore store;
  GlooCommunicator gloo;
};
}  // namespace detail

// This process's part in the group of a generation, which the flag ends.
class GlooMember : private detail::GlooOfGeneration, public AllReduce<GlooCommunicator> {
 public:
  // reach: outlives it.
  GlooMember(const Assignment& a, const GlooJobOptions& o, ControlChannel& channel, InterruptFlag& flag,
             JobReach& reach)
      : detail::GlooOfGeneration(a, o, channel, flag, reach),
        AllReduce<GlooCommunicator>(detail::GlooOfGeneration::gloo) {}
};

// Forms these groups, for Elastic.
struct FormGloo {
  GlooJobOptions options{};
  std::shared_ptr<JobReach> reach{};  // made with the first group
  [[nodiscard]] std::unique_ptr<GlooMember> operator()(const Assignment& a, ControlChannel& channel,
                                                       InterruptFlag& flag) {
    if (reach == nullptr) reach = std::make_shared<JobReach>(channel);
    return std::make_unique<GlooMember>(a, options, channel, flag, *reach);
  }
  // After a group has failed, see JobReach.
  void await_peers() const {
    if (reach != nullptr) reach->await_peers();
  }
  // Where gradients lie that ranks of a host sum in place.
  [[nodiscard]] ProcessWindows* windows() const {
    return options.shared_memory ? &ProcessWindows::of_process() : nullptr;
  }
  [[nodiscard]] static const std::vector<control::Member>& writers(const Assignment& a) { return a.workers; }
};

using ElasticGloo = Elastic<FormGloo>;

}  // namespace tutti
