// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/zeromq/job_options.hpp>
#include <tutti/backends/zeromq/key_exchange.hpp>
#include <tutti/backends/zeromq/security.hpp>
#include <tutti/backends/zeromq/zeromq.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/job_reachability.hpp>
#include <tutti/cluster/launch/scripted_job.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/key_store.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/elastic.hpp>
#include <tutti/strategy/parameter_server/parameter_server.hpp>
#include <tutti/strategy/parameter_server/server/serve_generations.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>
#include <tutti/version.hpp>

// Synchronous parameter servers of an elastic job. Each generation has new connections, so it cannot receive messages
// of an earlier generation.
namespace tutti::zeromq {

namespace detail {

// What a process knows about the other processes of its job: their keys, which each process publishes once, and the
// addresses of a generation's servers.
class PeerDirectory {
 public:
  PeerDirectory(ControlChannel& channel, const JobOptions& o) : channel_(channel), o_(o) {
    if (!o_.plain && zmq_has("curve") != 0) keys_ = KeyPair::generate();
  }
  // Publishes the key of this process, once.
  void introduce(control::Role role, std::int32_t place) {
    if (!std::exchange(introduced_, true)) channel_.publish(key(control::name_of(role), place), keys_.open + ".");
  }
  // Connects to servers that serve the whole job. New workers may join later, even from other hosts.
  void begin_job(const Assignment& a, InterruptFlag& flag) {
    const InterruptWatch watch(flag, [this] { channel_.wake_lookups(); });
    const bool server = a.role == control::Role::server;
    host_ = host_of(a);
    one_host_ = is_loopback(host_);
    introduce(a.role, (server ? a.servers : a.workers).at(static_cast<std::size_t>(a.rank)).place);
    word_.clear();
    if (encrypted())
      require_curve(keys_);
    else
      find_word(server && a.rank == 0, flag);
  }
  [[nodiscard]] std::string key_of_worker(const control::Member& m, InterruptFlag& flag) {
    if (!encrypted()) return "";
    std::string known = read(key_of(m), m.name(), flag);
    known.pop_back();
    return known;
  }
  [[nodiscard]] bool encrypted() const noexcept { return !one_host_ && !o_.plain; }
  // Returns a text that another process publishes. Throws CommunicationError if it does not arrive; the error names it
  // `what`.
  std::string read(const std::string& k, const std::string& what, InterruptFlag& flag) {
    if (auto text = channel_.lookup_unless(k, Deadline(o_.rendezvous_timeout), flag.raised())) return *std::move(text);
    fail<CommunicationError>("parameter server", {what, " within ", o_.rendezvous_timeout.count(), " ms"},
                             flag.raised() ? flag.why() : "no message from it", "check whether it still runs");
  }
  [[nodiscard]] const KeyPair& keys() const noexcept { return keys_; }
  // Starts a generation. Throws CommunicationError if a process has not published its key in time, or if `flag` is
  // raised.
  void begin_generation(const Assignment& a, InterruptFlag& flag) {
    const InterruptWatch watch(flag, [this] { channel_.wake_lookups(); });
    const bool server = a.role == control::Role::server;
    const auto& mine = (server ? a.servers : a.workers).at(static_cast<std::size_t>(a.rank));
    host_ = host_of(a);
    introduce(mine.role, mine.place);
    one_host_ = true;
    for (const auto* list : {&a.workers, &a.servers})
      for (const control::Member& m : *list) one_host_ = one_host_ && m.host == mine.host;
    word_.clear();
    worker_keys_.clear();
    if (encrypted()) {
      require_curve(keys_);
      for (const control::Member& m : a.workers) {
        std::string& known = known_[m.place];
        if (known.empty()) known = read(key_of(m), m.name(), flag);
        worker_keys_.push_back(known.substr(0, known.size() - 1));
      }
    } else {
      find_word(server && a.rank == 0, flag);
    }
  }
  [[nodiscard]] bool one_host() const noexcept { return one_host_; }
  [[nodiscard]] const std::string& host() const noexcept { return host_; }
  [[nodiscard]] Options options(const Assignment& a) const {
    Options o;
    o.lost_after = a.rank_timeout;
    // All processes learn of a change over the channel. A server that closes its end of the old generation must not
    // delay the other processes.
    o.last_words = std::chrono::milliseconds(50);
    o.security.kind = encrypted() ? Security::Kind::curve : Security::Kind::password;
    o.security.own = keys_;
    o.security.password = word_;
    o.security.workers = worker_keys_;
    return o;
  }
  void publish_endpoint(const Assignment& a, int port) {
    const control::Member& mine = a.servers.at(static_cast<std::size_t>(a.rank));
    channel_.publish(endpoint_key(a, mine), text_of({host_and_port(one_host_ ? "127.0.0.1" : host_, port), keys_.open,
                                                     std::to_string(a.generation)}));
  }
  [[nodiscard]] std::vector<ServerEndpoint> endpoints(const Assignment& a, InterruptFlag& flag) {
    const InterruptWatch watch(flag, [this] { channel_.wake_lookups(); });
    std::vector<ServerEndpoint> list;
    list.reserve(a.servers.size());
    for (const control::Member& s : a.servers)
      list.push_back(endpoint_of(read(endpoint_key(a, s), "the address of " + s.name(), flag)));
    return list;
  }

 private:
  [[nodiscard]] static std::string host_of(const Assignment& a) {
    const auto& list = a.role == control::Role::server ? a.servers : a.workers;
    const std::string& host = list.at(static_cast<std::size_t>(a.rank)).host;
    return host.empty() ? "localhost" : host;
  }
  void find_word(bool draws, InterruptFlag& flag) {
    if (draws && !channel_.find(word_key)) channel_.publish(word_key, random_word());
    word_ = read(word_key, "the password of the job", flag);
  }
  static std::string key_of(const control::Member& m) { return key(control::name_of(m.role), m.place); }
  static std::string endpoint_key(const Assignment& a, const control::Member& server) {
    return generation_key(a.generation, key("door", server.place));
  }

  ControlChannel& channel_;
  JobOptions o_;
  KeyPair keys_;
  bool introduced_ = false, one_host_ = true;
  std::string host_, word_;
  std::map<std::int32_t, std::string> known_;  // workers' keys by place, each with a point at its end
  std::vector<std::string> worker_keys_;       // of the generation's workers, in the order of their ranks
};

// Returns for each server whether it is on the host of this worker.
[[nodiscard]] inline std::vector<bool> neighbours(const Assignment& a) {
  const std::string& here = a.workers.at(static_cast<std::size_t>(a.rank)).host;
  std::vector<bool> list;
  for (const control::Member& s : a.servers) list.push_back(s.host == here);
  return list;
}

}  // namespace detail

// Connects a worker to the servers of a generation, for Elastic.
class ServedGroupFactory {
 public:
  explicit ServedGroupFactory(JobOptions o) : o_(std::move(o)) {}

  [[nodiscard]] std::unique_ptr<ParameterServer<WorkerEnd>> operator()(const Assignment& a, ControlChannel& channel,
                                                                       InterruptFlag& flag) {
    if (!others_) others_ = std::make_shared<detail::PeerDirectory>(channel, o_);
    others_->begin_generation(a, flag);
    ps::WorkerOptions w = detail::worker_options(o_);
    w.rank = a.rank;
    w.workers = static_cast<int>(a.workers.size());
    w.servers = static_cast<int>(a.servers.size());
    w.generation = a.generation;
    w.patience = o_.rendezvous_timeout;
    w.host = others_->host();
    w.neighbours = detail::neighbours(a);
    w.one_host = others_->one_host();
    w.flag = &flag;
    std::vector<ServerEndpoint> endpoints = others_->endpoints(a, flag);
    if (reach_ == nullptr) reach_ = std::make_shared<JobReachability>(channel);
    w.reach = reach_->begin_servers(a, detail::addresses_of(endpoints));
    auto end = std::make_unique<WorkerEnd>(a.rank, std::move(endpoints), others_->options(a));
    return std::make_unique<ParameterServer<WorkerEnd>>(std::move(end), w);
  }
  // Returns the windows for gradients, in which servers of this host sum.
  [[nodiscard]] ProcessWindows* windows() const { return detail::windows_of(o_); }
  [[nodiscard]] static const std::vector<control::Member>& writers(const Assignment& a) { return a.servers; }

 private:
  JobOptions o_;
  std::shared_ptr<detail::PeerDirectory> others_;
  std::shared_ptr<JobReachability> reach_;
};
using ElasticServed = Elastic<ServedGroupFactory>;

// Returns the options of such a job, with the facts that must be equal in all processes.
[[nodiscard]] inline ElasticOptions elastic_options(const LaunchEnvironment& start, const JobOptions& o) {
  ElasticOptions e;
  e.start = start;
  e.rendezvous_timeout = o.rendezvous_timeout;
  e.facts.add("tutti", version);
  for (const auto& [name, value] : o.facts.facts()) e.facts.add(name, value);
  // Only workers divide arrays.
  if (!start.is_server())
    e.facts.add("MXNET_KVSTORE_BIGARRAY_BOUND",
                std::to_string(ps::big_array_bound([](const char* name) { return std::getenv(name); })));
  return e;
}

// Serves in such a job until its workers have finished.
inline void serve_elastic_job(const LaunchEnvironment& start, const std::shared_ptr<ControlChannel>& channel,
                              const JobOptions& o, const std::function<bool()>& stop_requested) {
  if (channel == nullptr)
    fail<UsageError>("elastic training", "a process started by tutti-launch --elastic",
                     "a process started in another way",
                     "'tutti-launch --elastic -n N -s M PROGRAM' starts workers and servers");
  detail::PeerDirectory others(*channel, o);
  const auto form = [&](const Assignment& a, ControlChannel&, InterruptFlag& flag) {
    others.begin_generation(a, flag);
    auto end = std::make_unique<ServerEnd>(others.one_host() ? "127.0.0.1:0" : "*:0", others.options(a));
    end->log_refusals("server " + std::to_string(a.rank), o.log);
    others.publish_endpoint(a, end->port());
    ps::ServerOptions s = detail::server_options(o);
    s.index = a.rank;
    s.servers = static_cast<int>(a.servers.size());
    s.workers = static_cast<int>(a.workers.size());
    s.generation = a.generation;
    s.stop_requested = [&] { return channel->released(); };
    return std::make_unique<ps::Server<ServerEnd>>(std::move(end), s);
  };
  ps::serve_generations(*channel, elastic_options(start, o), form, stop_requested);
}

}  // namespace tutti::zeromq
