// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/zeromq/elastic.hpp>
#include <tutti/backends/zeromq/job_options.hpp>
#include <tutti/backends/zeromq/key_exchange.hpp>
#include <tutti/backends/zeromq/zeromq.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/elastic_member.hpp>
#include <tutti/cluster/job_reachability.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/async_parameter_server.hpp>
#include <tutti/strategy/parameter_server/elastic_async.hpp>
#include <tutti/strategy/parameter_server/server/serve_generations.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>

// Asynchronous parameter servers of an elastic job. The servers exist during the whole job. They admit workers that the
// arbiter has admitted, each by its unique number and its key.
namespace tutti::zeromq {

namespace detail {

[[nodiscard]] inline std::string admitted_key(int server, std::int32_t worker) {
  return key("admitted", server) + "/" + std::to_string(worker);
}

}  // namespace detail

// Connects a worker to the servers, for ElasticAsync.
class AsyncGroupFactory {
 public:
  explicit AsyncGroupFactory(JobOptions o) : o_(std::move(o)) {}

  // Call it before the arbiter admits this process, so that the servers already know its key then.
  void introduce(const LaunchEnvironment& start, ControlChannel& channel) {
    others_ = std::make_shared<detail::PeerDirectory>(channel, o_);
    others_->introduce(control::Role::worker, start.rank);
  }
  [[nodiscard]] std::unique_ptr<AsyncParameterServer<WorkerEnd>> operator()(const Assignment& a,
                                                                            ControlChannel& channel,
                                                                            InterruptFlag& flag) {
    others_->begin_job(a, flag);
    const std::int32_t number = a.workers.at(static_cast<std::size_t>(a.rank)).place;
    std::vector<ServerEndpoint> endpoints = find_endpoints(a, number, channel, flag);
    ps::WorkerOptions w = detail::worker_options(o_);
    w.rank = number;
    w.workers = 0;
    w.servers = static_cast<int>(a.servers.size());
    w.patience = o_.rendezvous_timeout;
    w.host = others_->host();
    w.neighbours = detail::neighbours(a);
    w.one_host = others_->one_host();
    w.flag = &flag;
    if (reach_ == nullptr) reach_ = std::make_shared<JobReachability>(channel);
    w.reach = reach_->begin_servers(a, detail::addresses_of(endpoints));
    auto end = std::make_unique<WorkerEnd>(number, std::move(endpoints), others_->options(a));
    return std::make_unique<AsyncParameterServer<WorkerEnd>>(std::move(end), w);
  }
  // Returns the windows for gradients, in which servers of this host read.
  [[nodiscard]] ProcessWindows* windows() const { return detail::windows_of(o_); }

 private:
  using ServerEndpoint = zeromq::ServerEndpoint;
  // Returns the addresses of the servers, after all servers have admitted this worker. Stops watching the flag then,
  // because only one watch can exist and a connected worker has its own.
  [[nodiscard]] std::vector<ServerEndpoint> find_endpoints(const Assignment& a, std::int32_t number,
                                                           ControlChannel& channel, InterruptFlag& flag) {
    const InterruptWatch watch(flag, [&channel] { channel.wake_lookups(); });
    std::vector<ServerEndpoint> endpoints;
    for (std::size_t s = 0; s < a.servers.size(); ++s) {
      const int server = static_cast<int>(s);
      endpoints.push_back(detail::endpoint_of(
          others_->read(detail::key("address", server), "the address of " + a.servers[s].name(), flag)));
      (void)others_->read(detail::admitted_key(server, number), "admission by " + a.servers[s].name(), flag);
    }
    return endpoints;
  }

  JobOptions o_;
  std::shared_ptr<detail::PeerDirectory> others_;
  std::shared_ptr<JobReachability> reach_;
};
using ElasticAsyncServed = ElasticAsync<AsyncGroupFactory>;

namespace detail {

// The workers to which a server listens: all that the arbiter has admitted, except those that were lost. A worker that
// leaves says goodbye to the server itself, after its last step.
class Admission {
 public:
  Admission(ControlChannel& channel, PeerDirectory& others, ServerEnd& end, InterruptFlag& flag,
            const Assignment& first)
      : channel_(channel), others_(others), end_(end), flag_(flag), index_(first.rank) {
    channel_.on_change([this](const control::MembershipChange& c) {
      const std::lock_guard lock(mutex_);
      for (const control::Member& m : c.lost)
        if (m.role == control::Role::worker) lost_.insert(static_cast<std::uint32_t>(m.place));
    });
    admit(first);
  }
  ~Admission() { channel_.on_change({}); }
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Returns the numbers of the workers if they have changed since the last call.
  [[nodiscard]] std::optional<std::vector<std::uint32_t>> operator()() {
    if (!channel_.released() && channel_.await_assignment(std::chrono::milliseconds(0)))
      if (const auto a = channel_.next_assignment_unless_released(std::chrono::milliseconds(0))) admit(*a);
    dismiss();
    if (!std::exchange(news_, false)) return {};
    return std::vector<std::uint32_t>(numbers_.begin(), numbers_.end());
  }

 private:
  void admit(const Assignment& a) {
    for (const control::Member& m : a.workers) {
      if (!numbers_.insert(static_cast<std::uint32_t>(m.place)).second) continue;
      if (others_.encrypted()) end_.admit(static_cast<std::uint32_t>(m.place), others_.key_of_worker(m, flag_));
      channel_.publish(admitted_key(index_, m.place), "1");
      news_ = true;
    }
    channel_.report_group_ready();
  }
  void dismiss() {
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t number : lost_) {
      if (numbers_.erase(number) == 0) continue;
      end_.dismiss(number);
      news_ = true;
    }
  }

  ControlChannel& channel_;
  PeerDirectory& others_;
  ServerEnd& end_;
  InterruptFlag& flag_;
  int index_;
  std::set<std::uint32_t> numbers_;
  bool news_ = false;
  std::mutex mutex_;
  std::set<std::uint32_t> lost_;  // the channel's thread uses it too
};

}  // namespace detail

// Serves in such a job until its workers have finished. Throws CommunicationError if the arbiter removes this process.
inline void serve_elastic_async_job(const LaunchEnvironment& start, const std::shared_ptr<ControlChannel>& channel,
                                    const JobOptions& o, const std::function<bool()>& stop_requested) {
  if (channel == nullptr)
    fail<UsageError>("elastic training", "a process started by tutti-launch --elastic",
                     "a process started in another way",
                     "'tutti-launch --elastic -n N -s M PROGRAM' starts workers and servers");
  const ElasticOptions options = elastic_options(start, o);
  const ps::detail::ServerFlag flags(*channel);
  detail::PeerDirectory others(*channel, o);
  channel->ask_to_enrol(control::Role::server, start.rank, start.host, options.facts);
  const auto a = ps::detail::next_generation(*channel, options, true, stop_requested);
  if (!a) return;
  const std::shared_ptr<InterruptFlag> flag = flags.renew();
  others.begin_job(*a, *flag);
  auto end = std::make_unique<ServerEnd>(others.one_host() ? "127.0.0.1:0" : "*:0", others.options(*a));
  end->log_refusals("server " + std::to_string(a->rank), o.log);
  const ServerEnd& endpoint = *end;
  const std::string host = others.one_host() ? "127.0.0.1" : others.host();
  channel->publish(detail::key("address", a->rank),
                   detail::text_of({host_and_port(host, end->port()), others.keys().open, "1"}));
  detail::Admission admission(*channel, others, *end, *flag, *a);
  ps::ServerOptions s = detail::server_options(o);
  s.index = a->rank;
  s.servers = static_cast<int>(a->servers.size());
  s.workers = 0;
  s.members = std::ref(admission);
  s.released = [&channel] { return channel->released(); };
  s.stop_requested = stop_requested;
  ps::Server<ServerEnd> server(std::move(end), s);
  {
    const InterruptWatch watch(*flag, [&server] { server.stop(); });
    server.run();
  }
  if (const ps::ServerCounts& n = server.counts(); o.log && n.refused() + endpoint.turned_away() > 0)
    o.log("server " + std::to_string(a->rank) + " refused " + std::to_string(n.refused()) + " frames and " +
          std::to_string(endpoint.turned_away()) + " connections");
  if (!flag->raised() || channel->released()) return;
  server.give_up("all processes of the job until its end", flag->why());
  fail<CommunicationError>({"server ", a->rank}, "the job until its end", flag->why());
}

}  // namespace tutti::zeromq
