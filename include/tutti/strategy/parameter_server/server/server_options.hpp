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

struct ServerOptions {  // what a Server can be told
  int index = 0, servers = 1, workers = 1;
  std::uint64_t generation = 1;
  std::chrono::milliseconds patience = std::chrono::seconds(120);  // until all workers have come
  std::size_t in_flight = usual_in_flight;  // bytes that a worker may have pushed without an answer
  // Of this process, for workers of this host, whose data then need not travel; outlives the server. Null: none.
  ProcessWindows* windows = nullptr;
  // Where it owns weights: outlives the server, whose thread uses it. Workers then come and go, each for itself.
  WeightStore* store = nullptr;
  // Steps that a worker may be ahead of the slowest one; none: as many as it likes (Ho et al., "More effective
  // distributed ML via a stale synchronous parallel parameter server", 2013).
  std::optional<std::int64_t> staleness{};
  // Is handed what the server owns, once the workers have brought it and every `keep_every` from then on.
  std::function<void(ServerState&&)> keep{};
  std::chrono::milliseconds keep_every = std::chrono::seconds(60);
  // What it goes on from, where it was started again; and the workers that had ended by then. Outlives the server.
  const ServerState* from = nullptr;
  std::vector<int> ended{};
  // Told of what is refused, at most once a second, and of workers that own weights lose.
  std::function<void(const std::string&)> log{};
  // Where workers come and go by their numbers, which only grow; `workers` is 0 then. Asked often, on the thread that
  // serves: the numbers of those that are in the job now, once these are others than before. What is pushed by anybody
  // else is refused. And whether the job is over; who has left does not end it.
  std::function<std::optional<std::vector<std::uint32_t>>()> members{};
  std::function<bool()> released{};
  std::function<bool()> stop_requested{};  // asked until all workers have come; they end the server later
};

// What a server was sent. What is refused changes nothing.
struct ServerCounts {
  std::uint64_t pushes = 0, answers = 0;
  std::uint64_t malformed = 0, strangers = 0, stale = 0, repeated = 0, too_much = 0;
  std::uint64_t lost_steps = 0;  // of workers that this server has not, because it was started again
  [[nodiscard]] std::uint64_t refused() const noexcept { return malformed + strangers + stale + too_much; }
};

// Says what a server refuses, a line a second at most, whatever comes.
class RefusalLog {
 public:
  void note(const ServerOptions& o, const std::string& peer, const std::string& why) {
    ++unsaid_;
    const auto now = std::chrono::steady_clock::now();
    if (!o.log || now < quiet_until_) return;
    quiet_until_ = now + std::chrono::seconds(1);
    o.log("server " + std::to_string(o.index) + " refused what came from " + peer + ": " + why +
          (unsaid_ > 1 ? " (and " + std::to_string(unsaid_ - 1) + " more)" : ""));
    unsaid_ = 0;
  }

 private:
  std::chrono::steady_clock::time_point quiet_until_{};
  std::uint64_t unsaid_ = 0;
};

}  // namespace tutti::ps
