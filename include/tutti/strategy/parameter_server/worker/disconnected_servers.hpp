// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tutti::ps {

// The servers that a worker has lost and for which it waits until they are restarted.
class DisconnectedServers {
 public:
  static constexpr std::chrono::milliseconds look_every{100};

  explicit DisconnectedServers(int servers = 0) : servers_(static_cast<std::size_t>(servers)) {}

  void lose(std::int64_t s) {
    Server& server = servers_[static_cast<std::size_t>(s)];
    if (!server.since) server.since = Clock::now();
    server.greeted = false;
  }
  [[nodiscard]] bool is(std::int64_t s) const { return servers_[static_cast<std::size_t>(s)].since.has_value(); }
  [[nodiscard]] int count() const {
    return static_cast<int>(std::count_if(servers_.begin(), servers_.end(), [](const Server& s) { return s.since; }));
  }
  [[nodiscard]] bool any() const { return count() > 0; }
  // Returns true if the worker is to look for server s now: at most once per look_every, and not after a greeting.
  [[nodiscard]] bool to_be_looked_for(std::int64_t s) {
    Server& server = servers_[static_cast<std::size_t>(s)];
    const auto now = Clock::now();
    if (!server.since || server.greeted || now < server.look_at) return false;
    server.look_at = now + look_every;
    return true;
  }
  void greeted(std::int64_t s) { servers_[static_cast<std::size_t>(s)].greeted = true; }
  void back(std::int64_t s) { servers_[static_cast<std::size_t>(s)] = {}; }
  // Returns a server that has been disconnected for longer than this time.
  [[nodiscard]] std::optional<std::int64_t> longer_than(std::chrono::milliseconds time) const {
    for (std::size_t s = 0; s < servers_.size(); ++s)
      if (servers_[s].since && Clock::now() - *servers_[s].since > time) return static_cast<std::int64_t>(s);
    return std::nullopt;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Server {
    std::optional<Clock::time_point> since{};
    Clock::time_point look_at{};
    bool greeted = false;
  };
  std::vector<Server> servers_;
};

}  // namespace tutti::ps
