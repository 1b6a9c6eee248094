// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include <tutti/backend/call.hpp>
#include <tutti/graph/update_ops.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

template <class B, class O>
concept RunsOp = requires(B& b, const O& o, Call& call, const NodeDesc& d, const PrepareInfo& info) {
  b.run(o, call);
  { b.partition(o, d) } -> std::same_as<Partition>;
  { b.prepare(o, info) } -> std::convertible_to<std::shared_ptr<void>>;
};

// One named requirement an op, so that the compiler's message says which one a backend lacks.
// clang-format off
template <class B> concept RunsNormalize = RunsOp<B, op::Normalize>;
template <class B> concept RunsConv2d = RunsOp<B, op::Conv2d>;
template <class B> concept RunsConv2dBackwardData = RunsOp<B, op::Conv2dBackwardData>;
template <class B> concept RunsConv2dBackwardWeights = RunsOp<B, op::Conv2dBackwardWeights>;
template <class B> concept RunsBatchNorm = RunsOp<B, op::BatchNorm>;
template <class B> concept RunsBatchNormInference = RunsOp<B, op::BatchNormInference>;
template <class B> concept RunsBatchNormBackward = RunsOp<B, op::BatchNormBackward>;
template <class B> concept RunsRelu = RunsOp<B, op::Relu> && RunsOp<B, op::ReluBackward>;
template <class B> concept RunsGelu = RunsOp<B, op::Gelu> && RunsOp<B, op::GeluBackward>;
template <class B> concept RunsAdd = RunsOp<B, op::Add>;
template <class B> concept RunsBias = RunsOp<B, op::Bias> && RunsOp<B, op::BiasBackward>;
template <class B> concept RunsMaxPool = RunsOp<B, op::MaxPool> && RunsOp<B, op::MaxPoolBackward>;
template <class B> concept RunsGlobalAvgPool = RunsOp<B, op::GlobalAvgPool> && RunsOp<B, op::GlobalAvgPoolBackward>;
template <class B> concept RunsLinear = RunsOp<B, op::Linear> && RunsOp<B, op::LinearBackwardData> && RunsOp<B, op::LinearBackwardWeights>;
template <class B> concept RunsSoftmaxCrossEntropy = RunsOp<B, op::SoftmaxCrossEntropy>;
template <class B> concept RunsCustom = RunsOp<B, op::Custom> && RunsOp<B, op::CustomBackward>;
// clang-format on

template <class B>
concept RunsUpdates = requires(B& b, const UpdateCall& u, void* p, const void* q, DType t, std::size_t n, double d) {
  b.update(op::SgdUpdate{}, u);
  b.update(op::AdamwUpdate{}, u);
  { b.squared_norms(u) } -> std::same_as<SquaredNorms>;  // for LARS, LARC and clipping
  b.average(t, p, q, n, d);                              // p = d * p + (1 - d) * q, for the weight EMA
  b.accumulate(t, p, q, n);                              // p += q, for gradient accumulation
};

template <class B>
concept PacksAtOnce = requires(B& b, DType compute, const std::vector<PackTarget>& targets, const void* prepared) {
  { b.prepare_packs(compute, targets) } -> std::same_as<std::shared_ptr<void>>;
  b.pack_all(compute, prepared);
};
template <class B>
concept PacksWeights = requires(B& b, const Op& o, const NodeDesc& d) {
  { b.pack_bytes(o, d) } -> std::same_as<std::size_t>;
}
&&(PacksAtOnce<B> ||
   requires(B & b, const Op& o, const NodeDesc& d, const TensorRef& w, void* to) { b.pack(o, d, w, to); });

// A backend may put off the last step of gradients and do it for many at once: begin_gradients() ahead of a run forgets
// what one left that did not come to its end, finish_gradients() starts it for all that wait. Whatever is started after
// that sees them final.
template <class B>
concept PutsOffGradients = requires(B& b) {
  b.begin_gradients();
  b.finish_gradients();
};
template <class B>
void finish_gradients(B& b) {
  if constexpr (PutsOffGradients<B>) b.finish_gradients();
}

// A device that tells the share of its last second or less in which it computed, 0..1, by its own counters; nothing
// where it cannot. Asking is cheap and never throws.
template <class B>
concept TellsUtilisation = requires(B& b) {
  { b.utilisation() } -> std::same_as<std::optional<double>>;
};

// Where tensors live, what runs the ops, and how work is spread over threads.
template <class B>
concept Backend = MemorySpace<B> && RunsNormalize<B> && RunsConv2d<B> && RunsConv2dBackwardData<B> &&
    RunsConv2dBackwardWeights<B> && RunsBatchNorm<B> && RunsBatchNormInference<B> && RunsBatchNormBackward<B> &&
    RunsRelu<B> && RunsGelu<B> && RunsAdd<B> && RunsBias<B> && RunsMaxPool<B> && RunsGlobalAvgPool<B> &&
    RunsLinear<B> && RunsSoftmaxCrossEntropy<B> && RunsCustom<B> && RunsUpdates<B> && PacksWeights<B> &&
    requires(B& b, const B& cb) {
  { cb.name() } -> std::convertible_to<std::string>;         // "onednn"
  { cb.description() } -> std::convertible_to<std::string>;  // library version, instruction set
  { cb.threads() } -> std::same_as<int>;
  { cb.lanes() } -> std::same_as<int>;
  { cb.chunk_bytes() } -> std::same_as<std::size_t>;
  b.parallel(1, [](int /*task*/, int /*worker*/) {});
};

}  // namespace tutti
