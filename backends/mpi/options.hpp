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
  bool hierarchical = true;   // ranks of one host combine first, and one of them communicates with the other hosts
  Wire wire = Wire::same;
  std::chrono::milliseconds deadline = usual_deadline;  // for every operation
  int ranks_per_host = 0;  // if more than 0: treats a machine as several hosts with that many ranks each, for tests
  std::size_t piece_bytes = std::size_t{1} << 30;  // MPI counts in int, so larger messages are cut into pieces of this
                                                   // size
};

}  // namespace tutti
