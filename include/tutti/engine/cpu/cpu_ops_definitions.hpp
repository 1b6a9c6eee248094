// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/span.hpp>
#include <tutti/engine/cpu/activation_ops.hpp>
#include <tutti/engine/cpu/amx/convolution_ops.hpp>
#include <tutti/engine/cpu/channels/channel_ops.hpp>
#include <tutti/engine/cpu/cpu_ops.hpp>
#include <tutti/engine/cpu/elementwise_ops.hpp>
#include <tutti/engine/cpu/ended_convolution.hpp>
#include <tutti/engine/cpu/grouped/grouped_ops.hpp>
#include <tutti/engine/cpu/integer_kernels.hpp>
#include <tutti/engine/cpu/linear_ops.hpp>
#include <tutti/engine/cpu/loss_ops.hpp>
#include <tutti/engine/cpu/muon.hpp>
#include <tutti/engine/cpu/norm/norm_ops.hpp>
#include <tutti/engine/cpu/pairs/pairs_ops.hpp>
#include <tutti/engine/cpu/pool/pool_ops.hpp>
#include <tutti/engine/cpu/tuning/tuner.hpp>
#include <tutti/engine/cpu/update_kernels.hpp>
#include <tutti/engine/cpu/winograd/winograd_ops.hpp>
#include <tutti/engine/kernel_table.hpp>
#include <tutti/engine/reference/loops.hpp>
#include <tutti/engine/reference/update.hpp>

// Definitions for cpu_ops.hpp, which includes this file unless they are compiled separately (core/separate.hpp).
namespace tutti {

TUTTI_CORE_FUNCTION CpuOps::CpuOps(CpuOptions o, std::function<void()> on_thread_start)
    : pool_(std::make_unique<ThreadPool>(o.threads > 0 ? o.threads : usable_cores(), std::move(on_thread_start))),
      convolution_(o.convolution),
      tuner_(o.convolution == cpu::ConvolutionAlgorithm::tune ? std::make_shared<cpu::Tuner>(std::move(o.choices))
                                                              : nullptr) {}

// Derived backends supply convolutions and matrix products. Ops without a row in the table use the reference loop.
TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> CpuOps::kernel(const Op& op, const NodeDesc& desc) {
  // clang-format off
  using Own = KernelTable<
      cpu::ByPixels<cpu::Normalize>,
      cpu::BatchNorm, cpu::ByPixels<cpu::BatchNormInference>, cpu::BatchNormBackward,
      cpu::ByPixels<cpu::RowLoop<op::Relu>>, cpu::RowLoop<op::ReluBackward>,
      cpu::ByPixels<cpu::Activation>, cpu::ActivationBackward,
      cpu::ByPixels<cpu::Add>,
      cpu::ByPixels<cpu::Bias>, cpu::BiasBackward,
      cpu::MaxPool, cpu::MaxPoolBackward,
      cpu::AvgPool, cpu::AvgPoolBackward,
      cpu::LinearBackwardWeights,
      cpu::SoftmaxCrossEntropy>;
  // clang-format on
  if (auto k = custom_kernel(op)) return k;
  if (const auto* ended = op_cast<cpu::EndedConvolution>(op))
    return std::make_unique<cpu::EndedConvolutionKernel>(
        *ended, isa(), desc, [this](const Op& o, const NodeDesc& d) { return kernel(o, d); });
  if (auto k = cpu::ChannelKernel::make(op, shared_, desc)) return k;
  if (auto k = Own::make(op, shared_, desc)) return k;
  return reference_kernel<false, Own, op::Multiply, op::MultiplyBackward, op::Concat, op::ConcatBackward, op::LayerNorm,
                          op::LayerNormBackward, op::Dropout, op::Conv2d, op::Conv2dBackwardData,
                          op::Conv2dBackwardWeights, op::Linear, op::LinearBackwardData>(op, desc);
}

TUTTI_CORE_FUNCTION bool CpuOps::is_by_winograd(const Op& op, const NodeDesc& desc) const {
  const auto problem = cpu::winograd::problem_of(op, desc);
  if (!problem || !cpu::winograd::has_code(shared_.isa, *problem)) return false;
  if (tuner_) return tuner_->chosen(op, *problem) == cpu::ConvolutionAlgorithm::winograd;
  // Winograd's products are in f32. With AMX, those of direct convolutions in bf16 are several times as fast.
  if (convolution_ == cpu::ConvolutionAlgorithm::automatic && problem->bf16 && shared_.amx) return false;
  return cpu::winograd::uses(convolution_, shared_.isa, *problem) && !is_by_pairs(op, desc);
}

TUTTI_CORE_FUNCTION bool CpuOps::is_by_pairs(const Op& op, const NodeDesc& desc) const {
  return convolution_ != cpu::ConvolutionAlgorithm::winograd &&
         cpu::pairs::follows(cpu::pairs::is_faster, shared_.isa, op, desc);
}

TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> CpuOps::convolution_kernel(const Op& op, const NodeDesc& desc,
                                                                       MakeKernel direct) {
  if (cpu::grouped::groups_of(op) > 1) {
    using Own =
        KernelTable<cpu::grouped::Conv2d, cpu::grouped::Conv2dBackwardData, cpu::grouped::Conv2dBackwardWeights>;
    return Own::make(op, shared_, desc);
  }
  const auto sums = [&](const NodeDesc& d) {
    using Tiles = KernelTable<cpu::amx::Conv2d, cpu::amx::Conv2dBackwardData, cpu::amx::Conv2dBackwardWeights>;
    if (shared_.amx && cpu::amx::computes(op, d)) return Tiles::make(op, shared_, d);
    using Own = KernelTable<cpu::pairs::Conv2d, cpu::pairs::Conv2dBackwardData, cpu::pairs::Conv2dBackwardWeights>;
    return is_by_pairs(op, d) ? Own::make(op, shared_, d) : direct(d);
  };
  const auto winograd = [&](const NodeDesc& d) {
    using Own =
        KernelTable<cpu::winograd::Conv2d, cpu::winograd::Conv2dBackwardData, cpu::winograd::Conv2dBackwardWeights>;
    return Own::make(op, shared_, d);
  };
  if (const auto problem = cpu::winograd::problem_of(op, desc);
      tuner_ && problem && cpu::winograd::has_code(shared_.isa, *problem))
    tuner_->choose(*this, op, *problem, desc, sums, winograd);
  return is_by_winograd(op, desc) ? winograd(desc) : sums(desc);
}

// Calls f for the blocks of a pass over arenas. The blocks do not depend on the number of threads.
template <class F>
void CpuOps::blocks(const UpdateCall& u, F&& f) {
  only_f32(u.dtype);
  const auto tasks = static_cast<int>((u.count + block - 1) / block);
  parallel(tasks, [&](int t, int) {
    const std::size_t begin = static_cast<std::size_t>(t) * block;
    UpdateCall part = u;
    part.count = std::min(block, u.count - begin);
    part.weights = static_cast<float*>(u.weights) + begin;
    part.gradients = static_cast<const float*>(u.gradients) + begin;
    for (auto& s : part.slots)
      if (s != nullptr) s = static_cast<float*>(s) + begin;
    const Span span(Lane::compute, "update", {}, static_cast<std::int64_t>(part.count), detail_watcher);
    f(part);
  });
}

TUTTI_CORE_FUNCTION void CpuOps::update(const UpdateOp& any, const UpdateCall& u) {
  if (const auto* sgd = std::get_if<SgdUpdate>(&any))
    return blocks(u, [&](const UpdateCall& part) { cpu::sgd(shared_.isa, *sgd, part); });
  if (const auto* adamw = std::get_if<AdamwUpdate>(&any))
    return blocks(u, [&](const UpdateCall& part) { cpu::adamw(shared_.isa, *adamw, part); });
  if (const auto* muon = std::get_if<MuonUpdate>(&any)) {
    if (u.rows == 0) return update(rest_of(*muon), u);
    only_f32(u.dtype);
    if (!muon_) muon_ = std::make_shared<cpu::MuonRoom>();
    return muon_->step(
        shared_.isa, [&](int tasks, FunctionRef<void(int, int)> f) { parallel(tasks, f); }, *muon, u);
  }
  const auto& lamb = std::get<LambUpdate>(any);
  const cpu::LambNumbers numbers(lamb, u);
  const SquaredNorms n = block_sums(
      u, [&](const UpdateCall& part, SquaredNorms* sums) { cpu::lamb(shared_.isa, numbers, part, nullptr, sums); });
  const auto rate = static_cast<float>(u.lr * lamb.ratio(n.weights, n.gradients, u.weight_decay));
  blocks(u, [&](const UpdateCall& part) { cpu::lamb(shared_.isa, numbers, part, &rate, nullptr); });
}
TUTTI_CORE_FUNCTION SquaredNorms CpuOps::squared_norms(const UpdateCall& u) {
  return block_sums(u,
                    [](const UpdateCall& part, SquaredNorms* sums) { *sums = reference::squared_norms<float>(part); });
}
// Sums over fixed blocks in order, so the result does not depend on the threads.
TUTTI_CORE_FUNCTION SquaredNorms CpuOps::block_sums(const UpdateCall& u,
                                                    FunctionRef<void(const UpdateCall&, SquaredNorms*)> f) {
  norms_.resize(std::max(norms_.size(), (u.count + block - 1) / block));
  blocks(u, [&](const UpdateCall& part) {
    const auto offset =
        static_cast<std::size_t>(static_cast<const float*>(part.gradients) - static_cast<const float*>(u.gradients));
    f(part, &norms_[offset / block]);
  });
  SquaredNorms sum;
  for (std::size_t i = 0; i * block < u.count; ++i) {
    sum.weights += norms_[i].weights;
    sum.gradients += norms_[i].gradients;
  }
  return sum;
}
TUTTI_CORE_FUNCTION void CpuOps::average(DType t, void* to, const void* from, std::size_t n, double decay) {
  only_f32(t);
  cpu::average(shared_.isa, static_cast<float*>(to), static_cast<const float*>(from), n, static_cast<float>(decay));
}
TUTTI_CORE_FUNCTION void CpuOps::accumulate(DType t, void* to, const void* from, std::size_t n) {
  only_f32(t);
  cpu::accumulate(shared_.isa, static_cast<float*>(to), static_cast<const float*>(from), n);
}

// Calls f for each block of sums of logical ranks.
template <class F>
void CpuOps::integer_blocks(std::size_t count, F&& f) {
  constexpr std::size_t each = block / IntegerBlock::elements;
  parallel(static_cast<int>((count + each - 1) / each), [&](int t, int) {
    const std::size_t begin = static_cast<std::size_t>(t) * each, end = std::min(count, begin + each);
    const Span span(Lane::compute, "integers", {}, static_cast<std::int64_t>(end - begin), detail_watcher);
    for (std::size_t i = begin; i < end; ++i) f(i);
  });
}
TUTTI_CORE_FUNCTION void CpuOps::to_integers(const ToIntegers& c) {
  integer_blocks(c.count, [&](std::size_t i) {
    piece_to_integers({c.blocks + i, 1, c.from, c.to, c.plus, c.maxima + i});
  });
}
TUTTI_CORE_FUNCTION void CpuOps::piece_to_integers(const ToIntegers& c) {
  if (c.plus != nullptr)
    cpu::to_integers<std::true_type>(shared_.isa, *c.blocks, c.from, c.to, c.plus, c.maxima);
  else
    cpu::to_integers<std::false_type>(shared_.isa, *c.blocks, c.from, c.to, c.plus, c.maxima);
}
TUTTI_CORE_FUNCTION void CpuOps::from_integers(const FromIntegers& c) {
  integer_blocks(c.count, [&](std::size_t i) { cpu::from_integers(shared_.isa, c.blocks[i], c.from, c.to); });
}

// Compilers differ in the products and sums that they fuse, and the C library chooses its exp() and log() by the
// processor.
TUTTI_CORE_FUNCTION std::vector<BitFact> CpuOps::bits_depend_on() const {
  std::vector<BitFact> facts = HostBackend::bits_depend_on();
  facts.push_back({"instruction set", std::string(cpu::name_of(isa()))});
  facts.push_back({"convolution", std::string(cpu::name_of(convolution_))});
  facts.push_back({"compiler", __VERSION__});
#if defined(_CS_GNU_LIBC_VERSION)
  std::array<char, 64> text{};
  if (::confstr(_CS_GNU_LIBC_VERSION, text.data(), text.size()) > 0) facts.push_back({"C library", text.data()});
#endif
#if defined(__x86_64__)
  facts.push_back({"tiles of AMX", shared_.amx ? "used" : "not used"});
  facts.push_back({"fused products", __builtin_cpu_supports("fma") ? "yes" : "no"});
#endif
  return facts;
}

}  // namespace tutti
