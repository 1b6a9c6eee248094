// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/zeromq/control.hpp>
#include <tutti/backends/zeromq/job_options.hpp>
#include <tutti/backends/zeromq/key_exchange.hpp>
#include <tutti/backends/zeromq/scheduler.hpp>
#include <tutti/backends/zeromq/security.hpp>
#include <tutti/backends/zeromq/zeromq.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/cluster/job_reachability.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/scripted_job.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/parameter_server/async_parameter_server.hpp>
#include <tutti/strategy/parameter_server/parameter_server.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/server/server_state.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>
#include <tutti/version.hpp>

// Connects the workers and servers of a job. They find each other over the job's channel. If the job has no secret,
// they also exchange keys there. The channel belongs to tutti-launch or, if scripts started the job, to server 0 or to
// a scheduler.
namespace tutti::zeromq {

namespace detail {

inline constexpr const char* whole_job = "all processes of the job until its end";

// Exchanges what the processes publish before the servers listen: their hosts, and the keys by which they are
// identified.
class ServerRendezvous {
 public:
  ServerRendezvous(const LaunchEnvironment& started, const JobOptions& o,
                   const std::function<bool()>& stop_requested = {})
      : o_(o), start_(started) {
    const LaunchEnvironment& start = start_;
    if (start.mpi)
      fail<UsageError>({"--strategy ", o_.strategy}, "tutti-launch -n N -s M to start workers and servers",
                       start.starter_of_mpi(),
                       {start.starter_of_mpi(), " starts only workers: they train with --strategy mpi"});
    if (start.servers < 1)
      fail<UsageError>({"--strategy ", o_.strategy}, "servers", "no server",
                       "tutti-launch -n N -s M starts N workers and M servers");
    o_.job != nullptr ? rendezvous_by_script(stop_requested) : rendezvous_by_launcher();
    watch_losses();
    host_ = start.host.empty() ? "localhost" : start.host;
    channel_->publish(key(start.is_server() ? "server" : "worker", start.rank), keys_.open + " " + host_);
    for (int w = 0; w < start.workers; ++w) workers_.push_back(said_by("worker", w));
    for (int s = 0; s < start.servers; ++s) servers_.push_back(said_by("server", s));
    // After this call the launcher watches this process. It names a process that is stopped, and refuses a process with
    // other facts.
    JobFacts facts;
    facts.add("tutti", version);
    for (const auto& [name, value] : o_.facts.facts()) facts.add(name, value);
    assigned_ = channel_->enrol(start, facts, o_.rendezvous_timeout);
    reach_.emplace(*channel_);
    for (const auto* list : {&workers_, &servers_})
      for (const PeerInfo& said : *list) one_host_ = one_host_ && said.host == host_;
    // Server 0 draws the password that workers send if the job uses no keys.
    if (encrypted()) require_curve(keys_);
    if (!encrypted()) {
      // A server that was restarted finds the existing password.
      if (start.is_server() && start.rank == 0 && !channel_->find(word_key)) channel_->publish(word_key, random_word());
      word_ = read(word_key, "the password of the job");
    }
  }

  // Returns the launch environment, with the rank of this process.
  [[nodiscard]] const LaunchEnvironment& start() const noexcept { return start_; }
  [[nodiscard]] ControlChannel& channel() noexcept { return *channel_; }
  // Leaves the job after the work is done. The process with the arbiter first waits for the other processes to leave.
  void leave() {
    reach_.reset();
    channel_.reset();
    if (arbiter_) arbiter_->wait_until_empty(std::chrono::seconds(10));
  }

  [[nodiscard]] bool encrypted() const noexcept { return !one_host_ && !o_.plain; }
  [[nodiscard]] bool one_host() const noexcept { return one_host_; }
  [[nodiscard]] const std::string& host() const noexcept { return host_; }
  [[nodiscard]] Options options() const {
    Options o;
    if (o_.job != nullptr) o.lost_after = o_.job->rank_timeout;
    o.security.kind = encrypted() ? Security::Kind::curve : Security::Kind::password;
    o.security.own = keys_;
    o.security.password = word_;
    for (const PeerInfo& w : workers_) o.security.workers.push_back(w.key);
    return o;
  }
  // Returns for each server whether it is on this host.
  [[nodiscard]] std::vector<bool> neighbours() const {
    std::vector<bool> list;
    for (const PeerInfo& s : servers_) list.push_back(s.host == host_);
    return list;
  }
  // Returns the address on which this server listens: the loopback address if all processes are on this host. The port
  // of server 0 in ScriptedJob is the arbiter's, so server 0 itself uses any free port.
  [[nodiscard]] std::string endpoint() const {
    const auto number = static_cast<std::size_t>(start_.rank);
    const bool given = o_.job != nullptr && number > 0 && number < o_.job->servers.size();
    return (one_host_ ? "127.0.0.1:" : "*:") + (given ? std::to_string(o_.job->servers[number].port) : "0");
  }
  void publish_address(int server, int port) {
    channel_->publish(key("address", server), text_of({host_and_port(one_host_ ? "127.0.0.1" : host_, port), keys_.open,
                                                       std::to_string(assigned_.generation)}));
  }
  [[nodiscard]] std::vector<ServerEndpoint> endpoints() {
    std::vector<ServerEndpoint> list;
    list.reserve(servers_.size());
    for (int s = 0; s < static_cast<int>(servers_.size()); ++s)
      list.push_back(endpoint_of(read(key("address", s), "the address of server " + std::to_string(s))));
    return list;
  }
  // Raised when the channel of this worker ends. It interrupts the worker's operations.
  [[nodiscard]] InterruptFlag& flag() noexcept { return flag_; }
  // Reports servers that this worker cannot reach, during the lifetime of this object.
  [[nodiscard]] ReachabilityMonitor* watch_servers() {
    return reach_->begin_servers(assigned_, addresses_of(endpoints()));
  }
  // Returns the current address of a server, if the server has published it.
  [[nodiscard]] std::optional<ServerEndpoint> find(int server) {
    const auto text = channel_->find(key("address", server));
    return text ? std::optional(endpoint_of(*text)) : std::nullopt;
  }

  // Returns true if this server was restarted after the job had begun.
  [[nodiscard]] bool began_before() const noexcept { return assigned_.generation > 1; }
  // Returns the workers that have ended.
  [[nodiscard]] std::vector<int> ended() const {
    std::vector<int> list;
    for (int w = 0; w < static_cast<int>(workers_.size()); ++w)
      if (std::none_of(assigned_.workers.begin(), assigned_.workers.end(),
                       [&](const control::Member& m) { return m.place == w; }))
        list.push_back(w);
    return list;
  }
  // Returns true if all workers have finished.
  [[nodiscard]] bool released() const { return channel_->released(); }

 private:
  struct PeerInfo {
    std::string key, host;
  };
  void rendezvous_by_launcher() {
    channel_ = ControlChannel::open();
    if (channel_ == nullptr)
      fail<UsageError>({"--strategy ", o_.strategy},
                       "tutti-launch, which provides the channel between workers and servers", "another launcher",
                       "tutti-launch -n N -s M starts N workers and M servers");
    if (!o_.plain && zmq_has("curve") != 0) keys_ = KeyPair::generate();
  }
  // A process that was restarted derives the same keys as before.
  void rendezvous_by_script(const std::function<bool()>& stop_requested) {
    const ScriptedJob& job = *o_.job;
    const std::string terms = job.terms(start_.workers, start_.servers);
    if (job.in_server && start_.is_server() && start_.rank == 0)
      arbiter_.emplace(job, terms, arbiter_options(start_, o_));
    channel_ = std::make_unique<ControlChannel>(
        std::make_unique<ControlLink>(job, terms, o_.rendezvous_timeout, stop_requested));
    if (!start_.numbered) take_number();
    if (!o_.plain && !job.secret.empty())
      keys_ = KeyPair::of(job.secret, (start_.is_server() ? "server " : "worker ") + std::to_string(start_.rank));
  }
  void take_number() {
    const int there = start_.is_server() ? start_.servers : start_.workers;
    const std::uint64_t number = channel_->next_number("ps/number/" + start_.role);
    if (number >= static_cast<std::uint64_t>(there))
      fail<UsageError>(start_.role, {"at most ", there, ", the number of the job"}, "an additional one",
                       "to restart a process of this job, restart the whole job");
    start_.rank = static_cast<int>(number);
    start_.numbered = true;
  }

  [[nodiscard]] std::string where_started(std::string_view role, int number) const {
    if (o_.job == nullptr) return "";
    const auto& list = role == "server" ? o_.job->servers : o_.job->workers;
    const auto i = static_cast<std::size_t>(number);
    return i < list.size() ? " at " + list[i].text() : "";
  }
  // Ends waits for processes that are lost before the training begins. If the channel of a worker ends, the worker was
  // removed from the job or cannot reach it.
  void watch_losses() {
    if (!start_.is_server())
      channel_->on_end([this](const std::string& why) {
        // A lost server ends the other processes. The loss of server 0 also ends the arbiter, and with it the channel.
        const std::lock_guard lock(losses_);
        flag_.raise(lost_.empty() ? why.substr(0, why.find_last_not_of('.') + 1) : lost_);
      });
    // The channel's thread may run this while leave() resets channel_, so it uses its own reference.
    channel_->on_change([this, &channel = *channel_](const control::MembershipChange& c) {
      for (const control::Member& m : c.lost) {
        if (m.role == control::Role::server ? start_.servers_restart : o_.strategy == "ps_async") continue;
        {
          // Keeps the first loss, because later losses follow from it.
          const std::lock_guard lock(losses_);
          if (lost_.empty()) lost_ = m.name() + " is gone";
        }
        stopped_ = true;
        channel.wake_lookups();
      }
    });
  }
  // Returns a text that was published on the channel. Throws CommunicationError if it does not arrive; the error names
  // it `what`, or names the lost process.
  std::string read(const std::string& k, const std::string& what) {
    if (auto text = channel_->lookup_unless(k, Deadline(o_.rendezvous_timeout), stopped_)) return *std::move(text);
    const std::lock_guard lock(losses_);
    if (!lost_.empty()) fail<CommunicationError>("parameter server", whole_job, lost_);
    fail<CommunicationError>("parameter server", {what, " within ", o_.rendezvous_timeout.count(), " ms"},
                             "no message from it", "check whether it still runs");
  }
  PeerInfo said_by(const char* role, int number) {
    const std::string text =
        read(key(role, number), std::string(role) + " " + std::to_string(number) + where_started(role, number));
    const std::size_t space = text.find(' ');
    return {text.substr(0, space), space == std::string::npos ? "" : text.substr(space + 1)};
  }

  JobOptions o_;
  LaunchEnvironment start_;
  std::mutex losses_;
  std::string lost_;
  std::atomic<bool> stopped_{false};  // set when a process was lost
  InterruptFlag flag_;
  std::optional<ArbiterServer> arbiter_;  // may also be the arbiter for this process's own channel
  std::unique_ptr<ControlChannel> channel_;
  std::optional<JobReachability> reach_;
  std::string host_, word_;
  KeyPair keys_;
  std::vector<PeerInfo> workers_, servers_;
  Assignment assigned_;
  bool one_host_ = true;
};

}  // namespace detail

// The strategy of a worker, from ParameterServer<WorkerEnd> or AsyncParameterServer<WorkerEnd>.
template <class Strategy>
class JobStrategy : public Strategy {
 public:
  JobStrategy(const LaunchEnvironment& start, const JobOptions& o)
      : JobStrategy(std::make_shared<detail::ServerRendezvous>(start, o), o) {}

 private:
  JobStrategy(const std::shared_ptr<detail::ServerRendezvous>& rendezvous, const JobOptions& o)
      : Strategy(std::make_unique<WorkerEnd>(rendezvous->start().rank, rendezvous->endpoints(), rendezvous->options(),
                                             // The shared pointer keeps the rendezvous alive until the last connection
                                             // has ended.
                                             [rendezvous](int server) { return rendezvous->find(server); }),
                 options(*rendezvous, rendezvous->start(), o)) {}
  static ps::WorkerOptions options(detail::ServerRendezvous& rendezvous, const LaunchEnvironment& start,
                                   const JobOptions& o) {
    ps::WorkerOptions w = detail::worker_options(o);
    w.rank = start.rank;
    w.workers = start.workers;
    w.servers = start.servers;
    w.patience = o.rendezvous_timeout + std::chrono::seconds(5);
    w.host = rendezvous.host();
    w.late = rendezvous.began_before();
    w.servers_return = Strategy::traits.owns_weights && start.servers_restart;
    // If a server ends while it writes to a window, the gradients there are damaged and cannot be sent again.
    if (w.servers_return) w.windows = nullptr;
    if (w.servers_return && o.shared_memory) w.no_windows = "servers can restart";
    w.neighbours = rendezvous.neighbours();
    w.one_host = rendezvous.one_host();
    w.flag = &rendezvous.flag();
    w.reach = rendezvous.watch_servers();
    return w;
  }
};

namespace detail {

// Stops a server before its workers have finished, if the job loses another server, the arbiter, or a worker that it
// may not lose.
class ServerExitMonitor {
 public:
  using Server = ps::Server<ServerEnd>;
  // spare_workers: lost workers may return.
  void follow(ControlChannel& channel, const std::string& arbiter, bool spare_workers) {
    channel.on_change([this, spare_workers](const control::MembershipChange& c) {
      for (const control::Member& m : c.lost) {
        if (m.role == control::Role::server) end(m.name() + " is gone");
        if (m.role == control::Role::worker && !spare_workers)
          end("rank " + std::to_string(m.place) + " on " + m.host + " is gone");
      }
    });
    channel.on_end([this, arbiter](const std::string& why) { end(arbiter + " is gone", why); });
  }
  // server: null after the server has been destroyed.
  void set(Server* server) {
    const std::lock_guard lock(mutex_);
    server_ = server;
    if (server_ != nullptr && !why_.empty()) server_->stop();
  }
  [[nodiscard]] std::string why() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }
  // Throws if this object has stopped the server.
  void check(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    if (!own_.empty()) throw CommunicationError(own_);
    if (!why_.empty()) fail<CommunicationError>(name, whole_job, why_);
  }

 private:
  void end(const std::string& why, const std::string& own = {}) {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) {
      why_ = why;
      own_ = own;
    }
    if (server_ != nullptr) server_->stop();
  }
  mutable std::mutex mutex_;
  std::string why_, own_;  // the reason for the other processes, and the message of this server itself
  Server* server_ = nullptr;
};

}  // namespace detail

// Serves in the job until its workers have finished, or until stop_requested() returns true before they have arrived.
// Throws a CommunicationError that names a process that was lost.
inline void serve_job(const LaunchEnvironment& started, const JobOptions& o, std::function<bool()> stop_requested) {
  detail::ServerExitMonitor exit_monitor;
  detail::ServerRendezvous rendezvous(started, o, stop_requested);
  const LaunchEnvironment& start = rendezvous.start();
  if (rendezvous.began_before() && o.from == nullptr)
    fail<CommunicationError>({"server ", start.rank}, "its saved state, because it was restarted during a job",
                             "no saved state", "use --resume to continue from the workers' checkpoint");
  auto end = std::make_unique<ServerEnd>(rendezvous.endpoint(), rendezvous.options());
  end->log_refusals("server " + std::to_string(start.rank), o.log);
  const ServerEnd& endpoint = *end;
  rendezvous.publish_address(start.rank, end->port());
  ps::ServerOptions s = detail::server_options(o);
  s.index = start.rank;
  s.servers = start.servers;
  s.workers = start.workers;
  s.keep = o.keep;
  s.keep_every = o.keep_every;
  s.from = o.from;
  if (rendezvous.began_before()) s.ended = rendezvous.ended();
  s.stop_requested = [&rendezvous, asked = std::move(stop_requested)] {
    return rendezvous.released() || (asked && asked());
  };
  {
    ps::Server<ServerEnd> server(std::move(end), s);
    struct Unset {
      detail::ServerExitMonitor& exit_monitor;
      ~Unset() { exit_monitor.set(nullptr); }
    } unset{exit_monitor};
    exit_monitor.set(&server);
    if (o.job != nullptr) exit_monitor.follow(rendezvous.channel(), o.job->arbiter_name(), o.strategy == "ps_async");
    server.run();
    const ps::ServerCounts& n = server.counts();
    if (o.log && n.refused() + endpoint.turned_away() > 0)
      o.log("server " + std::to_string(start.rank) + " refused " + std::to_string(n.refused()) + " frames and " +
            std::to_string(endpoint.turned_away()) + " connections");
    const std::string name = "server " + std::to_string(start.rank);
    if (const std::string why = exit_monitor.why(); !why.empty()) server.give_up(detail::whole_job, why);
    exit_monitor.check(name);
    // With tutti-launch, the launcher reports lost workers.
    if (const std::string lost = server.lost_workers(); o.job != nullptr && !lost.empty())
      fail<CommunicationError>(name, "all workers until the end of the job", {lost, " lost, and not returned"},
                               "the work of the other workers is saved");
  }
  rendezvous.leave();
}

}  // namespace tutti::zeromq
