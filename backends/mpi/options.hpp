// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>

#include <tutti/comm/wire_type.hpp>
#include <tutti/comm/work.hpp>

namespace tutti {

struct MpiOptions {  // options of MpiCommunicator
  using Wire = WireType;

  bool shared_memory = true;  // ranks of one host exchange data through a shared window
  bool hierarchical = true;   // ranks of a host sum first, and one of them communicates with other hosts
  Wire wire = Wire::same;
  std::chrono::milliseconds deadline = usual_deadline;  // of each operation
  int ranks_per_host = 0;  // for tests: if not 0, simulates hosts with this number of ranks each
  std::size_t piece_bytes = std::size_t{1} << 30;  // MPI counts elements in int, so larger messages are divided into
                                                   // pieces of this size
  std::size_t ring_message_bytes = std::size_t{1} << 20;  // of a message of a large sum
};

}  // namespace tutti
