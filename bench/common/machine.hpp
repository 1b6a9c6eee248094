// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/core/dtype.hpp>

// The limits of this machine. Each is measured once and cached.
namespace tutti::bench {

// Returns the GFLOP/s of `threads` threads together that run only multiply-adds. For bf16 on a processor without bf16
// instructions, returns the value of f32.
[[nodiscard]] double peak(DType precision, int threads);

// How many arrays a loop over memory reads (1 to 3) and writes (0 or 1).
struct Traffic {
  int reads = 2, writes = 1;
};

// Returns the GB/s of `threads` threads together, each with a loop that does nothing else than this traffic, by
// ordinary stores. Each array has 64 MB. The bytes are those that the loop reads and writes.
[[nodiscard]] double memory_bandwidth(int threads, const Traffic& traffic = {});

}  // namespace tutti::bench
