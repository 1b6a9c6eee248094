// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/core/isa.hpp>
#include <tutti/engine/cpu/amx/registers.hpp>
#include <tutti/tensor/memory.hpp>

// Data that tutti's own kernels of one backend share.
namespace tutti::cpu {

// Memory of each worker for a few factors per channel, used by one kernel at a time.
class ChannelFactors {
 public:
  // Called before the first step, so that a step does not allocate memory.
  void reserve(int workers, std::int64_t channels) {
    const auto padded = (static_cast<std::size_t>(channels) + 15) / 16 * 16;
    if (padded <= channels_) return;
    channels_ = padded;
    factors_.assign(static_cast<std::size_t>(workers) * most * padded, 0.0F);
  }
  [[nodiscard]] float* of(int worker, std::size_t k) {
    return factors_.data() + (static_cast<std::size_t>(worker) * most + k) * channels_;
  }

 private:
  static constexpr std::size_t most = 5;
  std::vector<float> factors_;  // [worker][most][channels_]
  std::size_t channels_ = 0;
};

// Memory for each worker, in which one kernel at a time stores operands in another form. Zeros at the start.
class WorkerRoom {
 public:
  // Called before the first step, as above.
  void reserve(int workers, std::size_t bytes) {
    // Not a multiple of the page size, so that the workers' parts do not share sets of a cache.
    const std::size_t stride = (bytes + 4095) / 4096 * 4096 + 64;
    if (stride <= stride_ && workers <= workers_) return;
    stride_ = std::max(stride, stride_);
    workers_ = std::max(workers, workers_);
    // Large enough to use huge pages.
    room_ = {};
    room_ = Buffer(host_, std::max(static_cast<std::size_t>(workers_) * stride_, 2 * HostMemory::huge_page));
  }
  [[nodiscard]] std::byte* of(int worker) const { return room_.at(static_cast<std::size_t>(worker) * stride_); }

 private:
  HostMemory host_;
  Buffer room_;
  std::size_t stride_ = 0;
  int workers_ = 0;
};

struct Shared {
  Isa isa = detect_isa();
  bool amx = detect_amx();  // whether kernels may use the tiles of AMX
  ChannelFactors factors;
  WorkerRoom room;
  bool reuses_weights = false;  // Backend::reuse_weights
};

// Returns the number of tasks that add up the shards' partial sums of `floats` floats, at most `most`. Each task reads
// half a megabyte; with many threads there are as many tasks as shards.
[[nodiscard]] inline int sum_tasks(std::int64_t floats, int shards, std::int64_t most) {
  return static_cast<int>(
      std::clamp<std::int64_t>(floats * shards / (128 * 1024), 1, std::min<std::int64_t>(std::max(16, shards), most)));
}

// Returns the number of parts of a large fully connected layer: the same for any number of threads.
[[nodiscard]] inline int linear_tasks(std::int64_t extent) {
  return static_cast<int>(std::clamp<std::int64_t>(extent / 32, 1, 16));
}

}  // namespace tutti::cpu
