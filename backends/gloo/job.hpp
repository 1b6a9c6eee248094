// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/gloo/address.hpp>
#include <tutti/backends/gloo/gloo.hpp>
#include <tutti/cluster/channel/channel_store.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/cluster/job_reachability.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/comm/net/secure_stream.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/version.hpp>

// The Gloo communicator of workers that tutti-launch started. They rendezvous over the job's control channel.
namespace tutti {

struct GlooJobOptions {
  std::chrono::milliseconds deadline = usual_deadline;                       // of each operation
  std::chrono::milliseconds rendezvous_timeout = std::chrono::seconds(120);  // within which all workers must arrive
  bool shared_memory = true, hierarchical = true;                            // as in GlooOptions
  WireType wire = WireType::same;
  const SecureStreams* streams = nullptr;  // as in GlooOptions
  JobFacts facts{};                        // must be equal in all processes, like the version of tutti
};

// Returns the options for the group of a generation, with the members in the order of its assignment.
[[nodiscard]] inline GlooOptions gloo_options(const Assignment& a, const GlooJobOptions& o) {
  GlooOptions g;
  g.rank = a.rank;
  g.size = static_cast<int>(a.workers.size());
  for (const control::Member& m : a.workers) g.hosts.push_back(m.host.empty() ? "localhost" : m.host);
  g.address = gloo_address(g.hosts, g.hosts.at(static_cast<std::size_t>(a.rank)));
  g.prefix = generation_key(a.generation, "gloo");
  g.shared_memory = o.shared_memory;
  g.hierarchical = o.hierarchical;
  g.wire = o.wire;
  g.streams = o.streams;
  g.deadline = o.deadline;
  g.rendezvous_timeout = o.rendezvous_timeout;
  return g;
}

// The same, and reports members that this process cannot reach.
[[nodiscard]] inline GlooOptions gloo_options(const Assignment& a, const GlooJobOptions& o, JobReachability& reach) {
  GlooOptions g = gloo_options(a, o);
  g.reach = reach.begin_workers(a, g.address);
  return g;
}

namespace detail {

// A worker's channel and its group. If a member is lost, the group ends.
class GlooJob {
 public:
  GlooJob(const LaunchEnvironment& start, const GlooJobOptions& o) : channel_(open(start)) {
    JobFacts facts;
    facts.add("tutti", version);
    for (const auto& [name, value] : o.facts.facts()) facts.add(name, value);
    const Assignment a = channel_->enrol(start, facts, o.rendezvous_timeout);
    const auto follow = [this](const control::MembershipChange& c) {
      if (const std::string end = control::reason_of_end(c); !end.empty()) flag_.raise(end);
    };
    channel_->on_change(follow);
    channel_->on_end([this](const std::string& why) { flag_.raise(why.substr(0, why.find_last_not_of('.') + 1)); });
    // on_end() does not report a loss that happened before it was called.
    if (const auto c = channel_->change()) follow(*c);
    communicator_.emplace(gloo_options(a, o, reach_), store_, flag_);
  }

  [[nodiscard]] GlooCommunicator& communicator() noexcept { return *communicator_; }

 private:
  // Called before the store is constructed, because the store refers to the channel.
  static std::unique_ptr<ControlChannel> open(const LaunchEnvironment& start) {
    auto channel = ControlChannel::open();
    if (channel == nullptr)
      fail<UsageError>("--strategy gloo", "tutti-launch, which provides the channel between the processes",
                       start.mpi        ? start.starter_of_mpi()
                       : start.launched ? "another launcher"
                                        : "a process started without a launcher",
                       {"put 'tutti-launch -n N' before the program to start N processes",
                        (start.mpi ? "; processes of " + start.starter_of_mpi() + " train with --strategy mpi" : "")});
    return channel;
  }

  InterruptFlag flag_;
  std::unique_ptr<ControlChannel> channel_;
  ChannelStore store_{*channel_};
  JobReachability reach_{*channel_};
  std::optional<GlooCommunicator> communicator_;
};

}  // namespace detail

// All-reduce over Gloo by the workers that tutti-launch started. Throws UsageError without tutti-launch.
class GlooAllReduce : private detail::GlooJob, public AllReduce<GlooCommunicator> {
 public:
  GlooAllReduce(const LaunchEnvironment& start, const GlooJobOptions& o)
      : detail::GlooJob(start, o), AllReduce<GlooCommunicator>(detail::GlooJob::communicator()) {}
};

}  // namespace tutti
