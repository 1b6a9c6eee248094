// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/core/dtype.hpp>

// The limits of this machine. Each is measured once and cached.
namespace tutti::bench {

// Returns the GFLOP/s of `threads` threads together that run multiply-adds only. If the processor has no bf16
// instructions, bf16 returns the value of f32.
[[nodiscard]] double peak(DType precision, int threads);

// Returns the GB/s of `threads` threads together that add two arrays into a third. Each array is far larger than a
// cache. Two reads and one write are counted.
[[nodiscard]] double memory_bandwidth(int threads);

}  // namespace tutti::bench
