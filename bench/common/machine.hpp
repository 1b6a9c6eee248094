// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/core/dtype.hpp>

// What the machine can do at most, measured once and remembered.
namespace tutti::bench {

// GFLOP/s of `threads` threads together that do nothing but multiply-adds; bf16 where the processor has no
// instructions for it: those of f32.
[[nodiscard]] double peak(DType precision, int threads);

// GB/s of `threads` threads together that add two arrays, each far larger than a cache, into a third; two reads and one
// write are counted.
[[nodiscard]] double memory_bandwidth(int threads);

}  // namespace tutti::bench
