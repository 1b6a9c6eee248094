// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <tutti/backends/cuda/cudnn/norm_fusion.hpp>
#include <tutti/backends/cuda/ops/fused_ops.hpp>
#include <tutti/backends/cuda/ops/norm_ops.hpp>
#include <tutti/backends/cuda/ops/private_ops.hpp>

// Batch norm by tutti's kernels, or by the library's if autotuning finds them faster.
namespace tutti::cuda {

template <class C>
concept FusesNorms = FusesConvolutions<C> &&
    requires(C& c, const BatchNormAddRelu& f, const BatchNormAddReluBackward& b) {
  { c.kernel(f) } -> std::same_as<std::shared_ptr<FusedKernel<BatchNormAddRelu>>>;
  { c.kernel(b) } -> std::same_as<std::shared_ptr<FusedKernel<BatchNormAddReluBackward>>>;
};

// The ops for which tutti or the library may have the faster kernel.
template <class O>
concept ChosenNorm =
    std::same_as<O, op::BatchNorm> || std::same_as<O, BatchNormWithMask> || std::same_as<O, op::BatchNormBackward>;

// Returns the library's form of this batch norm, or an empty value if the library has no such form.
[[nodiscard]] inline std::optional<BatchNormAddRelu> library_norm(const op::BatchNorm& o, const NodeDesc& d) {
  const Shape& x = d.in[0].shape;
  if (x[1] % vector_of(d.compute) != 0) return {};
  return BatchNormAddRelu{{x[0], x[1], x[2], x[3], d.compute}, o.residual, o.relu, o.eps, o.momentum};
}
[[nodiscard]] inline std::optional<BatchNormAddRelu> library_norm(const BatchNormWithMask& o, const NodeDesc& d) {
  return library_norm(op::BatchNorm{o.eps, o.momentum, true, true}, d);
}
// Returns an empty value also if the op masks by y or adds a second gradient: only tutti's kernels have these operands.
[[nodiscard]] inline std::optional<BatchNormAddReluBackward> library_norm(const op::BatchNormBackward& o,
                                                                          const NodeDesc& d) {
  const Shape& x = d.out[0].shape;
  if (o.residual || o.second || x[1] % vector_of(d.compute) != 0) return {};
  return BatchNormAddReluBackward{{x[0], x[1], x[2], x[3], d.compute}, o.relu};
}

inline void run_norm(FusedKernel<BatchNormAddRelu>& k, Launcher& l, const Workspace& w, const op::BatchNorm& o,
                     const Call& c) {
  const auto vector = [](const TensorRef& t) { return static_cast<float*>(t.data); };
  k.run({c.in[0].data, vector(c.in[1]), vector(c.in[2]), o.residual ? c.in[5].data : nullptr, vector(c.in[3]),
         vector(c.in[4]), c.out[0].data, vector(c.out[1]), vector(c.out[2])},
        w.at<void>(0), l.device().stream());
}
// The library's batch norm writes no mask: a kernel of tutti makes it of the output.
inline void run_norm(FusedKernel<BatchNormAddRelu>& k, Launcher& l, const Workspace& w, const BatchNormWithMask& o,
                     const Call& c) {
  run_norm(k, l, w, op::BatchNorm{o.eps, o.momentum, true, true}, c);
  const TensorRef& y = c.out[0];
  const std::int64_t n = y.shape.numel();
  l.op(y.dtype, OpKernel::relu_mask, l.blocks(n / 8), Launcher::block, y.data, c.out[3].data, n);
}
inline void run_norm(FusedKernel<BatchNormAddReluBackward>& k, Launcher& l, const Workspace& w,
                     const op::BatchNormBackward&, const Call& c) {
  const auto vector = [](const TensorRef& t) { return static_cast<float*>(t.data); };
  k.run({c.in[0].data, c.in[1].data, vector(c.in[2]), vector(c.in[3]), vector(c.in[4]), vector(c.in[5]), c.out[0].data,
         vector(c.out[1]), vector(c.out[2])},
        w.at<void>(0), l.device().stream());
}
inline void run_our_norm(Launcher& l, const NormOnce& n, const Workspace& w, const op::BatchNorm& o, const Call& c) {
  run_batch_norm(l, n, w, o, c);
}
inline void run_our_norm(Launcher& l, const NormOnce& n, const Workspace& w, const BatchNormWithMask& o,
                         const Call& c) {
  run_batch_norm(l, n, w, {o.eps, o.momentum, true, true}, c, true);
}
inline void run_our_norm(Launcher& l, const NormOnce& n, const Workspace& w, const op::BatchNormBackward& o,
                         const Call& c) {
  run_batch_norm_backward(l, n, w, o, c);
}

// Returns the library's kernel if it was faster in a measurement, otherwise null: tutti's kernels are to run.
template <class C, class O>
[[nodiscard]] std::shared_ptr<void> prepare_norm(C& library, Launcher& l, NormOnce& n, Workspace& w,
                                                 const Device& device, const CudaOptions& options, const O& o,
                                                 const NodeDesc& d) {
  const TensorDesc& x = d.out[0];  // has the shape of the input
  w.reserve(norm_tiles(x.dtype, x.shape).workspace_bytes());
  n.reserve();
  if constexpr (FusesNorms<C>) {
    if (!options.autotune.value_or(true) || options.fusion == CudaFusion::off) return {};
    const auto form = library_norm(o, d);
    if (!form) return {};
    const auto kernel = library.kernel(*form);
    if (kernel == nullptr) return {};
    w.reserve(kernel->workspace_bytes());
    const detail::TrialCall trial(device, d, 0);
    if (trial.call() == nullptr) return {};
    const auto ours = [&] { run_our_norm(l, n, w, o, *trial.call()); };
    const auto theirs = [&] { run_norm(*kernel, l, w, o, *trial.call()); };
    const std::string what =
        "tutti's batch norm " + std::string(std::is_same_v<O, BatchNormWithMask> ? "with a mask " : "");
    if (!library.no_slower(what + "against " + form->name(), ours, theirs)) return kernel;
  }
  return {};
}

// Runs the library's kernel, which is c.prepared, or tutti's kernels if c.prepared is null.
template <class O>
void run_chosen_norm(Launcher& l, const NormOnce& n, const Workspace& w, const O& o, const Call& c) {
  using F = std::conditional_t<std::is_same_v<O, op::BatchNormBackward>, BatchNormAddReluBackward, BatchNormAddRelu>;
  if (c.prepared == nullptr) return run_our_norm(l, n, w, o, c);
  run_norm(*static_cast<FusedKernel<F>*>(c.prepared), l, w, o, c);
}

}  // namespace tutti::cuda
