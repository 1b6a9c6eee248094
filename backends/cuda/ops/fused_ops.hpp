// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/cudnn/fused_convolutions.hpp>
#include <tutti/backends/cuda/cudnn/tuning.hpp>
#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/ops/conv_op.hpp>
#include <tutti/backends/cuda/ops/fuse_norms.hpp>
#include <tutti/backends/cuda/ops/norm_ops.hpp>
#include <tutti/backends/cuda/ops/private_ops.hpp>
#include <tutti/backends/cuda/options.hpp>
#include <tutti/backends/cuda/workspace.hpp>
#include <tutti/engine/call.hpp>

// Runs the ops of private_ops.hpp. Each runs as one kernel of the library if the library has one. Otherwise it runs
// step by step with the plain convolution and tutti's kernels, with as many passes over memory as before the fusion.
namespace tutti::cuda {

// Selects the chains to fuse. In f16 on Ampere and Hopper cuDNN has ready kernels for all chains; they are used without
// a measurement, because published work is faster with them. In f16 on newer GPUs it has them for the backward pass
// through batch norm, and in bf16 it has only the statistics, with kernels that it compiles for Ampere. These are used
// only if a measurement finds them faster (tests/backends/test_cudnn_plans.cpp).
[[nodiscard]] inline NormFusions norm_fusions(const CudaOptions& o, int architecture, DType t) {
  if (o.fusion == CudaFusion::on) return {true, true, true, !o.recompute, true, true};
  const bool may = o.fusion == CudaFusion::automatic && t != DType::f32 && architecture >= 80;
  const bool known = may && t == DType::f16 && architecture < 100;
  // Such kernels take cuDNN seconds to compile: without the option --autotune they are not tried.
  const bool tries = may && o.autotune.value_or(false);
  return {known || tries, known, known || (tries && t == DType::f16), !o.recompute, true, true};
}

// The functions for fusions that the library class C may have in addition to plain convolutions. Without them, chains
// are fused only if the options force it.
template <class C>
concept FusesConvolutions = requires(C& c, FusedPass pass, const ConvProblem& p, const FusedOperands& o, void* w,
                                     cudaStream_t s) {
  { c.fused_workspace_bytes(pass, p) } -> std::same_as<std::optional<std::size_t>>;
  c.run_fused(pass, p, o, w, s);
  {
    c.no_slower(
        std::string(), [] {}, [] {})
    } -> std::same_as<bool>;
};

// A prepared fused convolution of a plan.
struct PreparedFusion {
  FusedPass pass;
  PreparedConv conv;
  bool fused = false;
  std::size_t activated = 0;  // if it runs step by step: offset of the activated input in the workspace
  std::size_t workspace_bytes = 0;

  PreparedFusion(FusedPass which, const op::Window& o, DType t, const Shape& x, const Shape& w, const Shape& y)
      : pass(which), conv(plain_pass(which), o, t, x, w, y) {}

  [[nodiscard]] bool activates() const {
    return pass == FusedPass::activated_statistics || pass == FusedPass::activated_backward_weights;
  }
  // A fusion cannot pad channels, except the channels of the images.
  [[nodiscard]] bool may_fuse() const { return !conv.pads_out() && (!conv.pads_in() || pass == FusedPass::statistics); }
  void lay_out_fused(std::size_t library) {
    fused = true;
    conv.lay_out(library);
    workspace_bytes = conv.workspace_bytes;
  }
  // Plans the workspace for the op step by step. x, y: shapes in the forward direction.
  void lay_out_steps(std::size_t library, const Shape& x, const Shape& y) {
    fused = false;
    conv.lay_out(library);
    activated = Workspace::round_up(conv.workspace_bytes);
    workspace_bytes = conv.workspace_bytes;
    const DType t = conv.problem.type;
    if (activates()) workspace_bytes = activated + static_cast<std::size_t>(x.numel()) * size_of(t);
    if (pass == FusedPass::statistics || pass == FusedPass::activated_statistics)
      workspace_bytes = std::max(workspace_bytes, norm_tiles(t, y).workspace_bytes());
    if (pass == FusedPass::backward_data_norm)
      workspace_bytes = std::max(workspace_bytes, norm_tiles(t, x).workspace_bytes());
  }
};

namespace detail {

inline float* floats(const TensorRef& t) { return static_cast<float*>(t.data); }

template <class C>
void run_as_one(C& library, Launcher& l, const Workspace& w, WeightGradients& g, const PreparedFusion& k,
                const Call& c) {
  const ConvSteps steps(l, w, k.conv);
  FusedOperands o;
  o.a = c.in[0].data;
  o.b = c.in[1].data;
  o.out = c.out[0].data;
  if (k.activates()) {
    o.scale = c.in[2].data;
    o.bias = c.in[3].data;
  }
  switch (k.pass) {
    case FusedPass::statistics:
    case FusedPass::activated_statistics:
      o.a = steps.padded_in(o.a, k.conv.a_offset);
      o.sum = floats(c.out[1]);
      o.square_sum = floats(c.out[2]);
      break;
    case FusedPass::activated_backward_weights:
      o.out = steps.gradient(g, o.out);
      break;
    case FusedPass::backward_data_norm:
      o.x = c.in[2].data;
      o.gamma = floats(c.in[3]);
      o.beta = floats(c.in[4]);
      o.mean = floats(c.in[5]);
      o.inv_std = floats(c.in[6]);
      o.dgamma = floats(c.out[1]);
      o.dbeta = floats(c.out[2]);
      o.from_g = floats(c.out[3]);
      o.from_x = floats(c.out[4]);
      o.constant = floats(c.out[5]);
      break;
  }
  library.run_fused(k.pass, k.conv.problem, o, w.at<void>(k.conv.rest), l.device().stream());
}

template <class C>
void run_in_steps(C& library, Launcher& l, const Workspace& w, WeightGradients& g, const PreparedFusion& k,
                  const Call& c) {
  Call plain = c;
  const DType t = k.conv.problem.type;
  if (k.activates()) {
    const TensorRef& x = c.in[0];
    const std::int64_t n = x.shape.numel();
    const bool vectors = x.shape[1] % vector_of(t) == 0;
    void* const a = w.at<void>(k.activated);
    l.op(t, forms::activate.of(vectors), l.blocks(vectors ? n / vector_of(t) : n), Launcher::block, x.data,
         c.in[2].data, c.in[3].data, a, static_cast<int>(x.shape[1]), n);
    plain.in[0].data = a;
  }
  run_convolution(library, l, w, g, k.conv, plain);
  auto* const partial = w.at<float>(0);  // the convolution no longer needs the workspace
  if (k.pass == FusedPass::statistics || k.pass == FusedPass::activated_statistics) {
    const NormTiles n = norm_tiles(t, c.out[0].shape);
    l.op(t, n.of(forms::norm_statistics), n.grid(), 256, c.out[0].data, partial, n.rows, n.channels, n.log_lanes,
         n.chunk);
    l.op(t, OpKernel::norm_sums_finish, n.finish_grid(), 256, partial, static_cast<int>(n.chunks), n.chunk, n.rows,
         n.channels, c.out[1].data, c.out[2].data);
  } else if (k.pass == FusedPass::backward_data_norm) {
    void *const x = c.in[2].data, *const gamma = c.in[3].data, *const beta = c.in[4].data, *const mean = c.in[5].data,
                *const inv_std = c.in[6].data, *const none = nullptr;
    const NormTiles n = norm_tiles(t, c.in[2].shape);
    const NormBackwardForm form{1, false, false};
    l.op(t, form.sums(n), n.grid(), 256, c.out[0].data, none, x, none, mean, inv_std, gamma, beta, none, partial,
         n.rows, n.channels, n.log_lanes, n.chunk, form.bits());
    l.op(t, OpKernel::norm_backward_factors, n.finish_grid(), 256, partial, static_cast<int>(n.chunks), n.rows,
         n.channels, gamma, mean, inv_std, c.out[1].data, c.out[2].data, c.out[3].data, c.out[4].data, c.out[5].data);
  }
}

// Memory for the operands of a measurement, with the shapes of a run. call() is null if it does not fit on the device.
class TrialCall {
 public:
  TrialCall(const Device& device, const NodeDesc& d, std::size_t packed_bytes) {
    device.use();
    const auto operand = [&](const TensorDesc& t, std::size_t least) -> TensorRef {
      const std::size_t bytes = std::max(t.bytes(), least);
      memory_.emplace_back(bytes);
      void* const data = memory_.back().data();
      there_ = there_ && data != nullptr;
      // The bytes 0x3c are a small number in every type.
      if (data != nullptr) device.check_op(cudaMemsetAsync(data, 0x3c, bytes, device.stream()), "memory for a trial");
      return {data, t.dtype, t.shape};
    };
    call_.inputs = static_cast<int>(d.in.size());
    call_.outputs = static_cast<int>(d.out.size());
    for (std::size_t i = 0; i < d.in.size(); ++i) call_.in[i] = operand(d.in[i], i == 1 ? packed_bytes : 0);
    for (std::size_t i = 0; i < d.out.size(); ++i) call_.out[i] = operand(d.out[i], 0);
  }
  [[nodiscard]] const Call* call() const { return there_ ? &call_ : nullptr; }

 private:
  std::vector<cudnn::detail::Scratch> memory_;
  bool there_ = true;
  Call call_;
};

}  // namespace detail

// Runs a prepared fusion.
template <class C>
void run_fusion(C& library, Launcher& l, const Workspace& w, WeightGradients& g, const PreparedFusion& k,
                const Call& c) {
  if constexpr (FusesConvolutions<C>)
    if (k.fused) return detail::run_as_one(library, l, w, g, k, c);
  detail::run_in_steps(library, l, w, g, k, c);
}

// Prepares a fusion. It runs as one kernel if the library has a plan for these extents and, with autotune, if that plan
// is faster in a measurement. x, y: shapes of the convolution in the forward direction.
template <class C>
[[nodiscard]] std::shared_ptr<PreparedFusion> prepare_fusion(C& library, Launcher& l, Workspace& w, WeightGradients& g,
                                                             const Device& device, const CudaOptions& o, FusedPass pass,
                                                             const op::Window& window, const NodeDesc& d,
                                                             const Shape& x, const Shape& weights, const Shape& y) {
  if (plain_pass(pass) == ConvPass::backward_weights)
    g.reserve(PreparedConv(ConvPass::backward_weights, window, d.compute, x, weights, y).gradient_form().bytes);
  const auto made = [&] { return std::make_shared<PreparedFusion>(pass, window, d.compute, x, weights, y); };
  const auto steps = [&] {
    auto k = made();
    k->lay_out_steps(library.workspace_bytes(k->conv.pass, k->conv.problem), x, y);
    w.reserve(k->workspace_bytes);
    return k;
  };
  if constexpr (FusesConvolutions<C>) {
    auto k = made();
    const auto bytes = k->may_fuse() ? library.fused_workspace_bytes(pass, k->conv.problem) : std::nullopt;
    if (!bytes) return steps();
    k->lay_out_fused(*bytes);
    w.reserve(k->workspace_bytes);
    if (!o.autotune.value_or(true)) return k;
    auto other = steps();
    const PackedWeights packed(d.compute, weights);
    const detail::TrialCall trial(device, d, static_cast<std::size_t>(packed.count()) * size_of(d.compute));
    if (trial.call() == nullptr) return k;
    const auto run = [&](const PreparedFusion& which) {
      return [&] {
        run_fusion(library, l, w, g, which, *trial.call());
        g.begin();  // drops the conversion, which takes the same time for both ways
      };
    };
    return library.no_slower(to_string(pass) + " " + to_string(k->conv.problem), run(*k), run(*other)) ? k : other;
  } else {
    return steps();
  }
}

// Runs the last step of a batch norm's statistics, and computes the output if the op has one.
inline void run_batch_norm_from_sums(Launcher& l, const BatchNormFromSums& o, const Call& c) {
  const TensorRef& x = c.in[0];
  const NormTiles t = norm_tiles(x.dtype, x.shape);
  const std::size_t first = o.output ? 1 : 0;
  void* const none = nullptr;
  void *const mean = c.out[first].data, *const inv_std = c.out[first + 1].data;
  l.op(x.dtype, OpKernel::norm_from_sums, dim3(static_cast<unsigned>((t.channels + 255) / 256)), 256, c.in[5].data,
       c.in[6].data, t.rows, t.channels, o.eps, o.momentum, c.in[1].data, c.in[2].data, c.in[3].data, c.in[4].data,
       mean, inv_std, o.output ? none : c.out[2].data, o.output ? none : c.out[3].data);
  if (o.output)
    run_norm_apply(l, {o.relu, o.residual, o.mask}, x, o.residual ? c.in[7].data : none, c.out[0].data, mean, inv_std,
                   c.in[1].data, c.in[2].data, o.mask ? c.out[3].data : none, 0, o.eps);
}

inline void run_batch_norm_backward_apply(Launcher& l, const Call& c) {
  const TensorRef& x = c.in[1];
  const NormTiles t = norm_tiles(x.dtype, x.shape);
  l.op(x.dtype, t.of(forms::norm_backward_affine), t.grid(), 256, c.in[0].data, x.data, c.in[2].data, c.in[3].data,
       c.in[4].data, c.in[5].data, c.in[6].data, c.in[7].data, c.in[8].data, c.out[0].data, t.rows, t.channels,
       t.log_lanes, t.chunk);
}

}  // namespace tutti::cuda
