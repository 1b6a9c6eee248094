// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>

#include <tutti/comm/work.hpp>

namespace tutti {

struct MpiOptions {
  // How floating sums travel between processes that share no memory. same: as they are, bf16 added pair by pair in f32
  // and rounded each time. f32: bf16 as f32, rounded once at the end. bf16: f32 as bf16, half the bytes, with a
  // rounding per addition; only f32 sums.
  enum class Wire { same, f32, bf16 };

  bool shared_memory = true;  // ranks of one host work through a shared window
  bool hierarchical = true;   // ranks of one host combine first, and one of them speaks with the other hosts
  Wire wire = Wire::same;
  std::chrono::milliseconds deadline = usual_deadline;  // of every operation
  int ranks_per_host = 0;  // more than 0: pretend that a machine is several hosts of so many ranks each, for tests
  std::size_t piece_bytes = std::size_t{1} << 30;  // MPI counts in int, so larger messages are cut into such pieces
};

}  // namespace tutti
