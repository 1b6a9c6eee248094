// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/channel/assignment.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/reachability_monitor.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// Reports members on other hosts that this process cannot reach. The channel to the arbiter must outlive it.
class JobReachability {
 public:
  explicit JobReachability(ControlChannel& channel) : channel_(channel) {}
  ~JobReachability() {
    stopped_ = true;
    channel_.wake_lookups();
  }
  JobReachability(const JobReachability&) = delete;
  JobReachability& operator=(const JobReachability&) = delete;

  // Begins to watch a generation in which workers exchange messages with each other. This worker listens at `address`
  // of its host. Returns null if all workers are on one host.
  [[nodiscard]] ReachabilityMonitor* begin_workers(const Assignment& a, const std::string& address) {
    const control::Member& mine = a.workers.at(static_cast<std::size_t>(a.rank));
    std::vector<ReachabilityMonitor::Peer> peers;
    for (const control::Member& m : a.workers)
      if (m.host != mine.host) peers.push_back({m.id, [this, id = m.id] { return address_of(id); }});
    ReachabilityMonitor* const watch = begin(a, std::move(peers));
    if (watch != nullptr && !std::exchange(listens_, true)) channel_.publish(key(a.id), watch->listen(address));
    return watch;
  }
  // Begins to watch a generation in which this worker exchanges messages with servers, at `addresses` (with ports).
  [[nodiscard]] ReachabilityMonitor* begin_servers(const Assignment& a, const std::vector<std::string>& addresses) {
    const control::Member& mine = a.workers.at(static_cast<std::size_t>(a.rank));
    std::vector<ReachabilityMonitor::Peer> peers;
    for (std::size_t s = 0; s < a.servers.size() && s < addresses.size(); ++s)
      if (a.servers[s].host != mine.host) peers.push_back({a.servers[s].id, [at = addresses[s]] { return at; }});
    return begin(a, std::move(peers));
  }

  // Call it after the group has failed, see ReachabilityMonitor::await_peers(). Throws CommunicationError if the
  // arbiter has removed this process from the job.
  void await_peers() {
    if (!watch_) return;
    watch_->await_peers([this] {
      if (channel_.await_assignment(std::chrono::milliseconds(0))) return true;
      const auto c = channel_.change();
      return c && c->broken;
    });
  }

 private:
  [[nodiscard]] static std::string key(control::ProcessId id) { return "reach/" + std::to_string(id); }
  [[nodiscard]] ReachabilityMonitor* begin(const Assignment& a, std::vector<ReachabilityMonitor::Peer> peers) {
    if (peers.empty() && !watch_) return nullptr;
    if (!watch_)
      watch_.emplace(a.rank_timeout, [this](std::uint64_t operation, const std::vector<std::uint64_t>& members) {
        try {
          channel_.report_unreachable(operation, members);
        } catch (const Error&) {
          // The channel has ended: this process is no longer in the job.
        }
      });
    const bool none = peers.empty();
    watch_->begin(std::move(peers));
    return none ? nullptr : &*watch_;
  }
  // Returns the address that another process has published, or an empty text if it has not published any.
  [[nodiscard]] std::string address_of(control::ProcessId id) {
    try {
      return channel_.lookup_unless(key(id), Deadline(std::chrono::seconds(1)), stopped_).value_or("");
    } catch (const Error&) {
      return "";
    }
  }

  ControlChannel& channel_;
  bool listens_ = false;
  std::atomic<bool> stopped_{false};
  std::optional<ReachabilityMonitor> watch_;  // destroyed before the members that its thread uses
};

}  // namespace tutti
