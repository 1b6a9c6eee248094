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
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/engine/cpu/shared.hpp>
#include <tutti/engine/cpu/tuning/tuned_choices.hpp>
#include <tutti/engine/cpu/winograd/shapes.hpp>
#include <tutti/engine/host_backend.hpp>
#include <tutti/optim/update.hpp>

namespace tutti {

namespace cpu {
class Tuner;     // tuner.hpp
class MuonRoom;  // muon.hpp
}  // namespace cpu

struct CpuOptions {
  int threads = 0;  // 0: one per core this process may use
  cpu::ConvolutionAlgorithm convolution = cpu::ConvolutionAlgorithm::automatic;
  std::shared_ptr<cpu::TunedChoices> choices{};  // stored choices of `tune`; null: each backend measures again
};

// Shared by the CPU backends: threads, shards and tutti's own vector kernels for everything except convolutions and
// matrix products, in f32 and bf16.
class CpuOps : public HostBackend {
 public:
  TUTTI_CORE_FUNCTION explicit CpuOps(CpuOptions o = {}, std::function<void()> on_thread_start = {});

  [[nodiscard]] TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override;
  [[nodiscard]] int threads() const override { return pool_->threads(); }
  // Fixed shares of a batch with a partial sum each. There are more shares than threads, so that a slow core gets
  // fewer. The number is the same for all small numbers of threads, so that their results are bit-identical.
  [[nodiscard]] int shards() const override { return threads_of_division() <= 4 ? 8 : 2 * threads_of_division(); }
  // Returns the number of threads that determines how work is divided: 4 after fix_division().
  [[nodiscard]] int threads_of_division() const noexcept { return fixed_ ? 4 : threads(); }
  void fix_division() override { fixed_ = true; }
  void reuse_weights() override { shared_.reuses_weights = true; }
  [[nodiscard]] TUTTI_CORE_FUNCTION std::vector<BitFact> bits_depend_on() const override;
  using Backend::parallel;
  void parallel(std::span<const int> loops, FunctionRef<void(int, int, int)> f) override { pool_->run_loops(loops, f); }

  TUTTI_CORE_FUNCTION void update(const UpdateOp& op, const UpdateCall& u) override;
  [[nodiscard]] bool divides_muon() const override { return true; }
  [[nodiscard]] TUTTI_CORE_FUNCTION SquaredNorms squared_norms(const UpdateCall& u) override;
  TUTTI_CORE_FUNCTION void average(DType t, void* to, const void* from, std::size_t n, double decay) override;
  TUTTI_CORE_FUNCTION void accumulate(DType t, void* to, const void* from, std::size_t n) override;
  TUTTI_CORE_FUNCTION void to_integers(const ToIntegers& c) override;
  TUTTI_CORE_FUNCTION void from_integers(const FromIntegers& c) override;
  TUTTI_CORE_FUNCTION void piece_to_integers(const ToIntegers& c) override;

  [[nodiscard]] cpu::Isa isa() const noexcept { return shared_.isa; }
  // Returns the instruction set of tutti's own kernels, for description().
  [[nodiscard]] std::string own_kernels() const {
    return "own kernels " + std::string(cpu::name_of(isa())) + (shared_.amx ? " with AMX" : "");
  }
  // Returns whether Winograd's algorithm computes this op; for `tune`, whether it was chosen.
  [[nodiscard]] TUTTI_CORE_FUNCTION bool is_by_winograd(const Op& op, const NodeDesc& desc) const;

 protected:
  using MakeKernel = FunctionRef<std::unique_ptr<Kernel>(const NodeDesc&)>;
  // Returns the kernel of a convolution: tutti's own for groups, or (Winograd's, or of pairs in bf16) if their tables
  // or the measurements choose it; otherwise the result of `direct`, which may be null.
  [[nodiscard]] TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> convolution_kernel(const Op& op, const NodeDesc& desc,
                                                                               MakeKernel direct);
  // For tutti's own kernels in the table of a derived backend.
  [[nodiscard]] cpu::Shared& shared() noexcept { return shared_; }

 private:
  [[nodiscard]] TUTTI_CORE_FUNCTION bool is_by_pairs(const Op& op, const NodeDesc& desc) const;

  static constexpr std::size_t block = 16 * 1024;  // number of elements of a block, in a pass over arenas

  // Master weights are f32 for every type of activations.
  static void only_f32(DType t) {
    if (t != DType::f32) fail<UsageError>("cpu", "arenas of f32", tutti::name_of(t));
  }
  template <class F>
  void blocks(const UpdateCall& u, F&& f);
  template <class F>
  void integer_blocks(std::size_t count, F&& f);
  // Returns the sum of what f writes for each block.
  [[nodiscard]] TUTTI_CORE_FUNCTION SquaredNorms block_sums(const UpdateCall& u,
                                                            FunctionRef<void(const UpdateCall&, SquaredNorms*)> f);

  std::unique_ptr<ThreadPool> pool_;
  bool fixed_ = false;
  std::vector<SquaredNorms> norms_;  // per block
  cpu::Shared shared_;
  cpu::ConvolutionAlgorithm convolution_;
  std::shared_ptr<cpu::MuonRoom> muon_;  // made by the first step of Muon
  std::shared_ptr<cpu::Tuner> tuner_;  // null without `tune`; as a shared_ptr it does not need the definition of Tuner
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/engine/cpu/cpu_ops_definitions.hpp>
#endif
