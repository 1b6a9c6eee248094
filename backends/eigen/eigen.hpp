// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <tutti/backends/eigen/kernels.hpp>
#include <tutti/engine/cpu/cpu_ops.hpp>
#include <tutti/engine/kernel_table.hpp>

namespace tutti {

// Convolutions and linear layers with Eigen 3.4's fixed-size arrays, everything else by tutti's kernels; f32, and bf16
// computed in f32. Eigen uses the instruction set for which the program was compiled. Without -march=native this is
// SSE2, with a fifth of the speed of AVX-512. Eigen starts no threads here.
class EigenBackend : public CpuOps {
 public:
  explicit EigenBackend(CpuOptions o = {}) : CpuOps(std::move(o)), shared_(*this) {}

  [[nodiscard]] std::string name() const override { return "eigen"; }
  [[nodiscard]] std::string description() const override {
    return "Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." + std::to_string(EIGEN_MAJOR_VERSION) + "." +
           std::to_string(EIGEN_MINOR_VERSION) + " (" + Eigen::SimdInstructionSetsInUse() + "), " + own_kernels();
  }

  [[nodiscard]] bool ends_convolutions() const override { return true; }
  [[nodiscard]] TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override;

 private:
  eigen::Shared shared_;
};

#if !defined(TUTTI_SEPARATE_COMPILATION) || defined(TUTTI_SOURCE_EIGEN) || defined(TUTTI_IMPLEMENTATION)
TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> EigenBackend::kernel(const Op& op, const NodeDesc& desc) {
  using Own = KernelTable<eigen::Conv2d, eigen::Conv2dBackwardData, eigen::Conv2dBackwardWeights, eigen::Linear,
                          eigen::LinearBackwardData>;
  const auto direct = [&](const NodeDesc& d) { return Own::make(op, shared_, d); };
  if (auto k = convolution_kernel(op, desc, direct)) return k;
  return CpuOps::kernel(op, desc);
}
#endif

}  // namespace tutti
