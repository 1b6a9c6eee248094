// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/onednn/convolution_op.hpp>
#include <tutti/backends/onednn/linear_op.hpp>
#include <tutti/backends/onednn/onednn.hpp>
#include <tutti/backends/onednn/shared.hpp>
#include <tutti/backends/onednn/shim.hpp>
#include <tutti/backends/onednn/weight_gradient_op.hpp>
#include <tutti/engine/kernel_table.hpp>

// Definitions for onednn.hpp, which includes this file unless they are compiled separately (core/separate.hpp).
namespace tutti {

TUTTI_CORE_FUNCTION OnednnBackend::OnednnBackend(CpuOptions o)
    : CpuOps(std::move(o), &onednn::OneOmpThread::for_this_thread),
      shared_(std::make_unique<onednn::Shared>(*this, shared().room)) {}

TUTTI_CORE_FUNCTION OnednnBackend::~OnednnBackend() = default;

TUTTI_CORE_FUNCTION bool OnednnBackend::has_kernels() {
#if defined(__x86_64__)
  return true;
#else
  static const bool has = onednn::has_fast_convolution();
  return has;
#endif
}

TUTTI_CORE_FUNCTION bool OnednnBackend::has_bf16() {
#if defined(__x86_64__)
  return onednn::has_blocks_of_16();
#else
  return true;
#endif
}

TUTTI_CORE_FUNCTION std::string OnednnBackend::description() const {
  return "oneDNN " + onednn::version() + ", " + own_kernels();
}

// oneDNN chooses kernels and the sizes of their blocks by the instruction set that it may use and by the caches. It
// always sees one thread.
TUTTI_CORE_FUNCTION std::vector<BitFact> OnednnBackend::bits_depend_on() const {
  std::vector<BitFact> facts = CpuOps::bits_depend_on();
  facts.push_back({"oneDNN's instruction set", std::to_string(static_cast<unsigned>(dnnl_get_effective_cpu_isa()))});
  facts.push_back({"caches", onednn::caches()});
  return facts;
}

TUTTI_CORE_FUNCTION void OnednnBackend::parallel(std::span<const int> loops, FunctionRef<void(int, int, int)> f) {
  const onednn::OneOmpThread guard;
  CpuOps::parallel(loops, f);
}

TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> OnednnBackend::kernel(const Op& op, const NodeDesc& desc) {
  using Own = KernelTable<onednn::Conv2d, onednn::Conv2dBackwardData, onednn::Conv2dBackwardWeights, onednn::Linear,
                          onednn::LinearBackwardData>;
  const auto direct = [&](const NodeDesc& d) { return Own::make(op, *shared_, d); };
  if (auto k = convolution_kernel(op, desc, direct)) return k;
  return CpuOps::kernel(op, desc);
}

}  // namespace tutti
