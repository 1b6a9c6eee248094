// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <tutti/core/pause_tolerant_timer.hpp>

namespace tutti::ps {

// The servers that a worker has lost and for which it waits until they are restarted.
class DisconnectedServers {
 public:
  static constexpr std::chrono::milliseconds look_every{100};

  // patience: how long a server may be disconnected. A pause of this process does not count.
  explicit DisconnectedServers(int servers = 0, std::chrono::milliseconds patience = {})
      : servers_(static_cast<std::size_t>(servers)), patience_(patience) {}

  void add(std::int64_t s) {
    Server& server = servers_[static_cast<std::size_t>(s)];
    if (!server.disconnected) server.disconnected.emplace(patience_);
    server.greeted = false;
  }
  [[nodiscard]] bool contains(std::int64_t s) const {
    return servers_[static_cast<std::size_t>(s)].disconnected.has_value();
  }
  [[nodiscard]] int count() const {
    return static_cast<int>(
        std::count_if(servers_.begin(), servers_.end(), [](const Server& s) { return s.disconnected.has_value(); }));
  }
  [[nodiscard]] bool any() const { return count() > 0; }
  // Returns true if the worker is to look for server s now: at most once per look_every, and not after a greeting.
  [[nodiscard]] bool to_be_looked_for(std::int64_t s) {
    Server& server = servers_[static_cast<std::size_t>(s)];
    const auto now = Clock::now();
    if (!server.disconnected || server.greeted || now < server.look_at) return false;
    server.look_at = now + look_every;
    return true;
  }
  void greeted(std::int64_t s) { servers_[static_cast<std::size_t>(s)].greeted = true; }
  void remove(std::int64_t s) { servers_[static_cast<std::size_t>(s)] = {}; }
  // Returns a server that has been disconnected for too long. Call it at least once per look_every if any() is true.
  [[nodiscard]] std::optional<std::int64_t> overdue(PauseTolerantTimer::Time now = time_since_boot()) {
    std::optional<std::int64_t> found;
    for (std::size_t s = 0; s < servers_.size(); ++s)
      if (servers_[s].disconnected && servers_[s].disconnected->is_over(now) && !found)
        found = static_cast<std::int64_t>(s);
    return found;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Server {
    std::optional<PauseTolerantTimer> disconnected{};  // the time since it was lost
    Clock::time_point look_at{};
    bool greeted = false;
  };
  std::vector<Server> servers_;
  std::chrono::milliseconds patience_;
};

}  // namespace tutti::ps
