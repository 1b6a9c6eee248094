// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <variant>

#include <tutti/engine/cpu/shared.hpp>
#include <tutti/engine/host_backend.hpp>
#include <tutti/engine/reference/loops.hpp>

// Base classes of tutti's own kernels. Each kernel is a class in the file of its family and a row of CpuOps::kernel().
namespace tutti::cpu {

class NativeKernel : public Kernel {
 public:
  NativeKernel(const Op& op, Shared& b, const NodeDesc&) : op_(op), isa_(b.isa) {}

 protected:
  const Op& op_;
  Isa isa_;
};

// Processes any range of rows independently.
class RowKernel : public NativeKernel {
 public:
  using NativeKernel::NativeKernel;
  [[nodiscard]] Partition cut() override { return {Division::rows}; }
};

// Like RowKernel, for an op of type O, `o_`.
template <class O>
class RowKernelOf : public RowKernel {
 public:
  using For = O;
  using RowKernel::RowKernel;

 protected:
  const O& o_ = *std::get_if<O>(&op_);
};

// Like RowKernel, but runs the reference loop.
template <class O>
class RowLoop final : public HostKernel<> {
 public:
  using For = O;
  RowLoop(const Op& op, Shared&, const NodeDesc& d) : HostKernel(d), o_(*std::get_if<O>(&op)) {}
  [[nodiscard]] Partition cut() override { return {Division::rows}; }
  void run(Call& c) override { ReferenceLoops<false>::run(o_, c); }

 private:
  const O& o_;
};

[[nodiscard]] inline std::int64_t pixels(const TensorRef& x) { return x.shape.numel() / x.shape[1]; }

// Adds the shards' pairs of sums, in order.
inline void sum_pairs(const Call& c, std::int64_t channel, std::int64_t channels, double& a, double& b) {
  a = b = 0;
  for (int l = 0; l < c.shards; ++l) {
    const auto* p = reinterpret_cast<const double*>(c.partial_of(l));
    a += p[channel];
    b += p[channels + channel];
  }
}

}  // namespace tutti::cpu
