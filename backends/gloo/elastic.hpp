// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <tutti/backends/gloo/gloo.hpp>
#include <tutti/backends/gloo/job.hpp>
#include <tutti/cluster/channel/channel_store.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/job_reachability.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/elastic.hpp>

// Gloo groups of an elastic job.
namespace tutti {

namespace detail {
struct GlooGeneration {
  GlooGeneration(const Assignment& a, const GlooJobOptions& o, ControlChannel& channel, InterruptFlag& flag,
                 JobReachability& reach)
      : store(channel), gloo(gloo_options(a, o, reach), store, flag) {}
  ChannelStore store;
  GlooCommunicator gloo;
};
}  // namespace detail

// This process's membership in the group of a generation. The group ends when `flag` is raised.
class GlooMember : private detail::GlooGeneration, public AllReduce<GlooCommunicator> {
 public:
  // reach: must outlive this object.
  GlooMember(const Assignment& a, const GlooJobOptions& o, ControlChannel& channel, InterruptFlag& flag,
             JobReachability& reach)
      : detail::GlooGeneration(a, o, channel, flag, reach), AllReduce<GlooCommunicator>(detail::GlooGeneration::gloo) {}
};

// Forms the groups, for Elastic.
struct GlooGroupFactory {
  GlooJobOptions options{};
  std::shared_ptr<JobReachability> reach{};  // created with the first group
  [[nodiscard]] std::unique_ptr<GlooMember> operator()(const Assignment& a, ControlChannel& channel,
                                                       InterruptFlag& flag) {
    if (reach == nullptr) reach = std::make_shared<JobReachability>(channel);
    return std::make_unique<GlooMember>(a, options, channel, flag, *reach);
  }
  // Call after a group has failed; see JobReachability.
  void await_peers() const {
    if (reach != nullptr) reach->await_peers();
  }
  // Returns the windows for gradients, in which the ranks of a host sum, or null without shared memory.
  [[nodiscard]] ProcessWindows* windows() const {
    return options.shared_memory ? &ProcessWindows::of_process() : nullptr;
  }
  [[nodiscard]] static const std::vector<control::Member>& writers(const Assignment& a) { return a.workers; }
};

using ElasticGloo = Elastic<GlooGroupFactory>;

}  // namespace tutti
