// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tutti::ps {

// The state of a server that owns weights at one moment. A restarted server with the same number continues from it.
struct ServerState {
  // Bytes of an arena (frames.hpp), starting at `begin`.
  struct Piece {
    std::uint32_t arena = 0;
    std::uint64_t begin = 0;
    std::vector<std::byte> bytes{};
  };
  // The applied pushes of a worker: all pushes of its steps before its_step, and of the later pushes those in `done`,
  // by round and offset. first_clock, origin: how its clock began (OwnedOperations).
  struct Worker {
    std::uint64_t session = 0, its_step = 0;
    std::int64_t step = 0, clock = 0, first_clock = 0, origin = 0;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> done{};
  };
  std::int64_t steps = 0;  // steps of all workers
  std::vector<Piece> pieces{};
  std::vector<Worker> workers{};
};

}  // namespace tutti::ps
