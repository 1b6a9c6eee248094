// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>

#include <tutti/comm/wire_type.hpp>
#include <tutti/comm/work.hpp>

namespace tutti {

struct MpiOptions {  // what MpiCommunicator can be told
  using Wire = WireType;

  bool shared_memory = true;  // ranks of one host work through a shared window
  bool hierarchical = true;   // ranks of one host combine first, and one of them speaks with the other hosts
  Wire wire = Wire::same;
  std::chrono::milliseconds deadline = usual_deadline;  // of every operation
  int ranks_per_host = 0;  // more than 0: pretend that a machine is several hosts of so many ranks each, for tests
  std::size_t piece_bytes = std::size_t{1} << 30;  // MPI counts in int, so larger messages are cut into such pieces
};

}  // namespace tutti
