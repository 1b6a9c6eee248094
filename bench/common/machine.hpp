// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/core/dtype.hpp>

// The limits of this machine. Each is measured once and cached.
namespace tutti::bench {

// Returns the GFLOP/s of `threads` threads together that run only multiply-adds. For bf16 on a processor without bf16
// instructions, returns the value of f32.
[[nodiscard]] double peak(DType precision, int threads);

// Returns the GB/s of `threads` threads together that add two arrays into a third one. Each array is far larger than a
// cache. Counts two reads and one write.
[[nodiscard]] double memory_bandwidth(int threads);

}  // namespace tutti::bench
