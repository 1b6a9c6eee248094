// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/core/threads.hpp>
#include <tutti/engine/cpu/isa.hpp>
#include <tutti/engine/host_backend.hpp>
#include <tutti/optim/update_ops.hpp>

namespace tutti {

struct CpuOptions {
  int threads = 0;  // 0: one per core this process may use
};

namespace cpu {

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

}  // namespace cpu

// What the CPU backends share: threads, lanes and our own vector kernels for everything but convolutions and products
// of matrices, in f32 and bf16.
class CpuOps : public HostBackend {
 public:
  explicit CpuOps(CpuOptions o = {}, std::function<void()> on_thread_start = {});

  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override;
  [[nodiscard]] int threads() const override { return pool_->threads(); }
  // Fixed shares of a batch with a partial sum each: more than threads, so that a slow core gets fewer; the same for
  // all small numbers of threads, so that their results are the same bits.
  [[nodiscard]] int lanes() const override { return threads() <= 4 ? 8 : 2 * threads(); }
  void parallel(int tasks, FunctionRef<void(int, int)> f) override { pool_->run(tasks, f); }

  void update(const UpdateOp& op, const UpdateCall& u) override;
  [[nodiscard]] SquaredNorms squared_norms(const UpdateCall& u) override;
  void average(DType t, void* to, const void* from, std::size_t n, double decay) override;
  void accumulate(DType t, void* to, const void* from, std::size_t n) override;

  // For kernels.
  [[nodiscard]] cpu::Isa isa() const noexcept { return isa_; }
  [[nodiscard]] cpu::ChannelFactors& factors() noexcept { return factors_; }
  // Parts that a large fully connected layer is cut into: the same for any number of threads.
  [[nodiscard]] static int linear_tasks(std::int64_t extent) {
    return static_cast<int>(std::clamp<std::int64_t>(extent / 32, 1, 16));
  }

 private:
  static constexpr std::size_t block = 16 * 1024;  // of a pass over arenas

  // Master weights are f32 whatever the activations are.
  static void only_f32(DType t) {
    if (t != DType::f32) fail<UsageError>("cpu", "arenas of f32", std::string(tutti::name_of(t)));
  }
  template <class F>
  void blocks(const UpdateCall& u, F&& f);

  std::unique_ptr<ThreadPool> pool_;
  cpu::ChannelFactors factors_;
  std::vector<SquaredNorms> norms_;  // per block
  cpu::Isa isa_;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/engine/cpu/cpu_ops_definitions.hpp>
#endif
