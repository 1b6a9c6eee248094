// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/core/threads.hpp>
#include <tutti/engine/cpu/shared.hpp>
#include <tutti/engine/cpu/tuned_choices.hpp>
#include <tutti/engine/cpu/winograd/shapes.hpp>
#include <tutti/engine/host_backend.hpp>
#include <tutti/optim/update.hpp>

namespace tutti {

namespace cpu {
class Tuner;  // tuner.hpp
}  // namespace cpu

struct CpuOptions {
  int threads = 0;  // 0: one per core this process may use
  cpu::ConvolutionAlgorithm convolution = cpu::ConvolutionAlgorithm::automatic;
  std::shared_ptr<cpu::TunedChoices> choices{};  // of tune; null: they are measured anew by each backend
};

// What the CPU backends share: threads, shards and our own vector kernels for everything but convolutions and products
// of matrices, in f32 and bf16.
class CpuOps : public HostBackend {
 public:
  TUTTI_CORE_FUNCTION explicit CpuOps(CpuOptions o = {}, std::function<void()> on_thread_start = {});

  [[nodiscard]] TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override;
  [[nodiscard]] int threads() const override { return pool_->threads(); }
  // Fixed shares of a batch with a partial sum each: more than threads, so that a slow core gets fewer; the same for
  // all small numbers of threads, so that their results are the same bits.
  [[nodiscard]] int shards() const override { return threads() <= 4 ? 8 : 2 * threads(); }
  using Backend::parallel;
  void parallel(std::span<const int> loops, FunctionRef<void(int, int, int)> f) override { pool_->run_loops(loops, f); }

  TUTTI_CORE_FUNCTION void update(const UpdateOp& op, const UpdateCall& u) override;
  [[nodiscard]] TUTTI_CORE_FUNCTION SquaredNorms squared_norms(const UpdateCall& u) override;
  TUTTI_CORE_FUNCTION void average(DType t, void* to, const void* from, std::size_t n, double decay) override;
  TUTTI_CORE_FUNCTION void accumulate(DType t, void* to, const void* from, std::size_t n) override;

  [[nodiscard]] cpu::Isa isa() const noexcept { return shared_.isa; }
  // Whether Winograd's algorithm computes this op: of tune, whether it was chosen for it.
  [[nodiscard]] TUTTI_CORE_FUNCTION bool is_by_winograd(const Op& op, const NodeDesc& desc) const;

 protected:
  using MakeKernel = FunctionRef<std::unique_ptr<Kernel>(const NodeDesc&)>;
  // The kernel of a convolution: one of our own, Winograd's or of pairs in bf16, where their tables or what was
  // measured say so; else what `direct` makes, which may be null.
  [[nodiscard]] TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> convolution_kernel(const Op& op, const NodeDesc& desc,
                                                                               MakeKernel direct);
  // For our own kernels in a table of who inherits from this.
  [[nodiscard]] cpu::Shared& shared() noexcept { return shared_; }

 private:
  [[nodiscard]] TUTTI_CORE_FUNCTION bool is_by_pairs(const Op& op, const NodeDesc& desc) const;

  static constexpr std::size_t block = 16 * 1024;  // of a pass over arenas

  // Master weights are f32 whatever the activations are.
  static void only_f32(DType t) {
    if (t != DType::f32) fail<UsageError>("cpu", "arenas of f32", std::string(tutti::name_of(t)));
  }
  template <class F>
  void blocks(const UpdateCall& u, F&& f);

  std::unique_ptr<ThreadPool> pool_;
  std::vector<SquaredNorms> norms_;  // per block
  cpu::Shared shared_;
  cpu::ConvolutionAlgorithm convolution_;
  std::shared_ptr<cpu::Tuner> tuner_;  // of tune; shared, so that only who makes it knows what it is
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/engine/cpu/cpu_ops_definitions.hpp>
#endif
