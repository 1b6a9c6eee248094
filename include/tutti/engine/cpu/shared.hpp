// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/core/isa.hpp>

// What our own kernels of one backend share.
namespace tutti::cpu {

// Room of each worker for a few factors per channel, for one kernel at a time.
class ChannelFactors {
 public:
  // Before the first step, so that a step allocates nothing.
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

struct Shared {
  Isa isa = detect_isa();
  ChannelFactors factors;
};

// Parts that a large fully connected layer is cut into: the same for any number of threads.
[[nodiscard]] inline int linear_tasks(std::int64_t extent) {
  return static_cast<int>(std::clamp<std::int64_t>(extent / 32, 1, 16));
}

}  // namespace tutti::cpu
