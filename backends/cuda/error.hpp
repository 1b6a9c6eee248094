// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include <tutti/core/error.hpp>

// Turns errors of the CUDA libraries into DeviceErrors: "[cuda] expected ..., got ...". Needs no driver.
namespace tutti::cuda {

[[nodiscard]] inline std::string error_text(cudaError_t e) {
  return std::string(cudaGetErrorString(e)) + " (" + cudaGetErrorName(e) + ")";
}

// Returns a version number of the runtime or the driver as text: "13.0" for 13000.
[[nodiscard]] inline std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Throws DeviceError if a call of the runtime failed. what: the expected result.
inline void check(cudaError_t e, std::string_view what, std::string_view hint = {}) {
  if (e != cudaSuccess) fail<DeviceError>("cuda", what, error_text(e), hint);
}

}  // namespace tutti::cuda
