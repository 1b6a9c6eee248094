// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>
#include <optional>

#include <tutti/backends/cuda/library.hpp>

namespace tutti::cuda {

// Measures how busy a GPU is, by the driver's management library, NVML. If the library is missing or does not
// report the rate (for a part of a GPU under MIG), returns no number and no error.
class Utilisation {
 public:
  // Finds the GPU by its PCI bus address: NVML ignores CUDA_VISIBLE_DEVICES.
  explicit Utilisation(const cudaDeviceProp& gpu) noexcept {
    try {
      const Library nvml("libnvidia-ml.so.1", "the NVIDIA driver");
      if (!nvml.found()) return;
      const auto init = nvml.function<int()>("nvmlInit_v2");
      const auto find = nvml.function<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
      const auto rates = nvml.function<int(void*, unsigned*)>("nvmlDeviceGetUtilizationRates");
      std::array<char, 32> place{};
      std::snprintf(place.data(), place.size(), "%08x:%02x:%02x.0", static_cast<unsigned>(gpu.pciDomainID),
                    static_cast<unsigned>(gpu.pciBusID), static_cast<unsigned>(gpu.pciDeviceID));
      if (init() == success && find(place.data(), &handle_) == success) rates_ = rates;
    } catch (...) {  // an old library, or too little memory: there is no number
    }
  }

  // Returns the share of a recent period during which any kernel of any process ran, 0..1. NVML averages over
  // 1/6 to 1 s, depending on the GPU. Source: nvmlUtilization_t in NVIDIA's NVML API reference.
  [[nodiscard]] std::optional<double> operator()() const noexcept {
    std::array<unsigned, 2> percent{};  // the GPU's and its memory's rate: nvmlUtilization_t
    if (rates_ == nullptr || rates_(handle_, percent.data()) != success || percent[0] > 100) return std::nullopt;
    return percent[0] / 100.0;
  }

 private:
  // NVML's C interface is older than all supported GPUs. It is declared here because some toolkit packages lack its
  // header.
  static constexpr int success = 0;

  int (*rates_)(void*, unsigned*) = nullptr;
  void* handle_ = nullptr;
};

}  // namespace tutti::cuda
