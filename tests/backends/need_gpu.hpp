// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>

#include <tutti/backends/cuda/device.hpp>

namespace tutti::testing {

// Returns true if there is no GPU, and prints a skip with the reason. The names of test cases that call it begin with
// "gpu: ".
[[nodiscard]] inline bool no_gpu() {
  try {
    cuda::require_device(0);
    return false;
  } catch (const DeviceError& e) {
    std::printf("SKIP: %s\n", e.what());
    return true;
  }
}

}  // namespace tutti::testing
