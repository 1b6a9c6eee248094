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
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/elastic.hpp>

// Gloo's groups of a job whose members come and go.
namespace tutti {

namespace detail {
struct GlooOfGeneration {
  GlooOfGeneration(const Assignment& a, const GlooJobOptions& o, ControlChannel& channel, InterruptFlag& flag)
      : store(channel), gloo(gloo_options(a, o), store, flag) {}
  ChannelStore store;
  GlooCommunicator gloo;
};
}  // namespace detail

// This process's part in the group of a generation, which the flag ends.
class GlooMember : private detail::GlooOfGeneration, public AllReduce<GlooCommunicator> {
 public:
  GlooMember(const Assignment& a, const GlooJobOptions& o, ControlChannel& channel, InterruptFlag& flag)
      : detail::GlooOfGeneration(a, o, channel, flag), AllReduce<GlooCommunicator>(detail::GlooOfGeneration::gloo) {}
};

// Forms these groups, for Elastic.
struct FormGloo {
  GlooJobOptions options{};
  [[nodiscard]] std::unique_ptr<GlooMember> operator()(const Assignment& a, ControlChannel& channel,
                                                       InterruptFlag& flag) const {
    return std::make_unique<GlooMember>(a, options, channel, flag);
  }
  // Where gradients lie that ranks of a host sum in place.
  [[nodiscard]] ProcessWindows* windows() const {
    return options.shared_memory ? &ProcessWindows::of_process() : nullptr;
  }
  [[nodiscard]] static const std::vector<control::Member>& writers(const Assignment& a) { return a.workers; }
};

using ElasticGloo = Elastic<FormGloo>;

}  // namespace tutti
