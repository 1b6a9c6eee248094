// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/strategy/parameter_server/server/round_table.hpp>
#include <tutti/strategy/parameter_server/server/server_state.hpp>
#include <tutti/strategy/parameter_server/server/weight_store.hpp>

namespace tutti::ps {

struct ServerOptions {  // options of a Server
  int index = 0, servers = 1, workers = 1;
  std::uint64_t generation = 1;
  std::chrono::milliseconds patience = std::chrono::seconds(120);  // time until all workers have connected
  std::size_t in_flight = usual_in_flight;  // bytes that a worker may have pushed without an answer
  // The windows of this process, through which workers of this host pass data without sending it. They must outlive the
  // server. Null: no windows.
  ProcessWindows* windows = nullptr;
  // The weights, if the server owns them; must outlive the server, because its thread uses it. Workers then join and
  // leave independently.
  WeightStore* store = nullptr;
  // Number of steps that a worker may be ahead of the slowest worker. No value: no limit (Ho et al., "More effective
  // distributed ML via a stale synchronous parallel parameter server", 2013).
  std::optional<std::int64_t> staleness{};
  // Receives the server's state after the workers have sent it, and then again after each `keep_every`.
  std::function<void(ServerState&&)> keep{};
  std::chrono::milliseconds keep_every = std::chrono::seconds(60);
  // from: the state from which a restarted server continues; must outlive the server. ended: workers that had ended.
  const ServerState* from = nullptr;
  std::vector<int> ended{};
  // Called for refused messages, at most once a second, and for lost workers if the server owns weights.
  std::function<void(const std::string&)> log{};
  // For jobs with changing workers; `workers` is then 0, and each new worker has a larger number. members() is called
  // often, on the serving thread: it returns the numbers of the workers in the job if they have changed. Pushes of
  // other workers are refused. released() returns whether the job has ended, because a worker that leaves does not end
  // it.
  std::function<std::optional<std::vector<std::uint32_t>>()> members{};
  std::function<bool()> released{};
  std::function<bool()> stop_requested{};  // called until all workers have connected; then they end the server
};

// Counts of the messages that a server received. A refused message has no effect.
struct ServerCounts {
  std::uint64_t pushes = 0, answers = 0;
  std::uint64_t malformed = 0, strangers = 0, stale = 0, repeated = 0, too_much = 0;
  std::uint64_t lost_steps = 0;  // steps of workers that this server lost because it was restarted
  [[nodiscard]] std::uint64_t refused() const noexcept { return malformed + strangers + stale + too_much; }
};

// Logs a server's refusals, at most one line a second.
class RefusalLog {
 public:
  void note(const ServerOptions& o, const std::string& peer, const std::string& why) {
    ++unsaid_;
    const auto now = std::chrono::steady_clock::now();
    if (!o.log || now < quiet_until_) return;
    quiet_until_ = now + std::chrono::seconds(1);
    o.log("server " + std::to_string(o.index) + " refused a message from " + peer + ": " + why +
          (unsaid_ > 1 ? " (and " + std::to_string(unsaid_ - 1) + " more)" : ""));
    unsaid_ = 0;
  }

 private:
  std::chrono::steady_clock::time_point quiet_until_{};
  std::uint64_t unsaid_ = 0;
};

}  // namespace tutti::ps
