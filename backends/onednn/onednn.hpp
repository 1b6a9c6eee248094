// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/engine/cpu/cpu_ops.hpp>

namespace tutti {

namespace onednn {
class Shared;  // shared.hpp
}  // namespace onednn

// Convolutions and fully connected layers by oneDNN (2.6 or 3.x), everything else by tutti's kernels; f32 and bf16.
class OnednnBackend : public CpuOps {
 public:
  TUTTI_CORE_FUNCTION explicit OnednnBackend(CpuOptions o = {});
  TUTTI_CORE_FUNCTION ~OnednnBackend() override;
  OnednnBackend(const OnednnBackend&) = delete;
  OnednnBackend& operator=(const OnednnBackend&) = delete;

  // Returns whether oneDNN has fast kernels on this processor. Debian's oneDNN for ARM has only scalar ones, unlike one
  // that was built with the Arm Compute Library.
  [[nodiscard]] TUTTI_CORE_FUNCTION static bool has_kernels();
  // Returns whether oneDNN has kernels for bf16 on this processor: on x86-64 they need AVX-512.
  [[nodiscard]] TUTTI_CORE_FUNCTION static bool has_bf16();

  [[nodiscard]] std::string name() const override { return "onednn"; }
  [[nodiscard]] bool computes_in(DType t) const override {
    return CpuOps::computes_in(t) && (t != DType::bf16 || has_bf16());
  }
  [[nodiscard]] TUTTI_CORE_FUNCTION std::string description() const override;
  [[nodiscard]] TUTTI_CORE_FUNCTION std::vector<BitFact> bits_depend_on() const override;
  using CpuOps::parallel;
  TUTTI_CORE_FUNCTION void parallel(std::span<const int> loops, FunctionRef<void(int, int, int)> f) override;
  [[nodiscard]] bool ends_convolutions() const override { return true; }
  [[nodiscard]] TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override;

 private:
  std::unique_ptr<onednn::Shared> shared_;
};

}  // namespace tutti

#if !defined(TUTTI_SEPARATE_COMPILATION) || defined(TUTTI_SOURCE_ONEDNN) || defined(TUTTI_IMPLEMENTATION)
#include <tutti/backends/onednn/onednn_definitions.hpp>
#endif
