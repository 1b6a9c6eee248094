// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/ops/norm_once.hpp>
#include <tutti/backends/cuda/workspace.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>

// Batch norm and the sums of columns by tutti's kernels.
namespace tutti::cuda {

// How blocks of 256 threads share a tensor viewed as [rows, channels] (kernels/norm.hpp). It depends on the extents
// only, so that sums are the same on every GPU.
struct NormTiles {
  std::int64_t rows = 0;
  int channels = 0, log_lanes = 0;
  bool vectors = true;  // the channels are whole vectors of 16 bytes
  unsigned groups = 1, chunks = 1;
  std::int64_t chunk = 1;

  // per_thread: the channels of a thread, if they divide the width; otherwise a thread takes one.
  NormTiles(std::int64_t per_thread, std::int64_t all, std::int64_t width)
      : rows(all), channels(static_cast<int>(width)) {
    const std::int64_t v = width % per_thread == 0 ? per_thread : 1, across = (width + v - 1) / v;
    vectors = v != 1;
    while (log_lanes < 5 && (1 << log_lanes) < across) ++log_lanes;
    groups = static_cast<unsigned>((across + (1 << log_lanes) - 1) >> log_lanes);
    // At least 4 rows for each thread, and at most about 1,024 blocks, which fill any GPU several times.
    const std::int64_t step = 256 >> log_lanes, most = std::max<std::int64_t>(1, 1024 / groups);
    const std::int64_t wanted = std::clamp<std::int64_t>(all / (4 * step), 1, most);
    chunk = ((all + wanted - 1) / wanted + step - 1) / step * step;
    chunks = static_cast<unsigned>((all + chunk - 1) / chunk);
  }

  NormTiles(DType t, std::int64_t all, std::int64_t width) : NormTiles(std::int64_t{vector_of(t)}, all, width) {}

  [[nodiscard]] dim3 grid() const { return {groups, chunks}; }
  [[nodiscard]] std::int64_t bytes(DType t) const { return rows * channels * static_cast<std::int64_t>(size_of(t)); }
  [[nodiscard]] dim3 finish_grid() const { return dim3(static_cast<unsigned>((channels + 7) / 8)); }
  [[nodiscard]] OpKernel of(Forms<OpKernel> k) const { return k.of(vectors); }
  // The workspace: partial sums [chunks][2][channels], followed by means [2][channels]; f32.
  [[nodiscard]] std::size_t partial_bytes() const {
    return Workspace::round_up(std::size_t{chunks} * 2 * static_cast<std::size_t>(channels) * sizeof(float));
  }
  [[nodiscard]] std::size_t workspace_bytes() const {
    return partial_bytes() + 2 * static_cast<std::size_t>(channels) * sizeof(float);
  }
};

// The form of a batch norm in the forward pass (kernels/norm.hpp), and the kernel for it. The most frequent forms have
// a kernel of their own.
struct NormApplyForm {
  bool relu = false, residual = false;
  bool mask = false;  // with relu and residual: the kernel also writes the mask, and takes 8 channels per thread
  [[nodiscard]] int bits() const { return (relu ? 1 : 0) + (residual ? 2 : 0) + (mask ? 4 : 0); }
  [[nodiscard]] OpKernel kernel(const NormTiles& t) const {
    if (mask) return OpKernel::norm_apply_add_relu_bits;
    constexpr std::array kernels{OpKernel::norm_apply, OpKernel::norm_apply_relu, OpKernel::norm_apply_any,
                                 OpKernel::norm_apply_add_relu};
    return t.vectors ? kernels[static_cast<std::size_t>(bits())] : OpKernel::norm_apply_any_1;
  }
};
// Returns the kernel that makes all passes, or an empty value if there is none for this form. It has the tiles of the
// separate kernels, so that it gives the same bits. t: the tiles of the first pass, with vectors of 16 bytes.
[[nodiscard]] inline std::optional<OpKernel> once(NormApplyForm f, DType type, const NormTiles& t) {
  if (f.mask) return vector_of(type) == 8 ? std::optional(OpKernel::norm_once_add_relu_bits) : std::nullopt;
  if (!t.vectors || f.residual) return {};
  return f.relu ? OpKernel::norm_once_relu : OpKernel::norm_once;
}
struct NormBackwardForm {
  // Of the relu: 0 no mask, 1 the sign of the recomputed output, 2 the sign of the relu's output, 3 the mask, with 8
  // channels per thread.
  int mask = 0;
  bool second = false;  // the gradient has two parts
  bool keep = false;    // the masked gradient is written: it is the gradient of the residual
  [[nodiscard]] int bits() const { return mask + (second ? 4 : 0) + (keep ? 8 : 0); }
  [[nodiscard]] OpKernel sums(const NormTiles& t) const {
    if (!t.vectors) return OpKernel::norm_backward_sums_any_1;
    switch (bits()) {
      case 0:
        return OpKernel::norm_backward_sums;
      case 1:
        return OpKernel::norm_backward_sums_relu;
      case 5:
        return OpKernel::norm_backward_sums_relu_two;
      case 11:
        return OpKernel::norm_backward_sums_keep;
      case 15:
        return OpKernel::norm_backward_sums_keep_two;
      default:
        return OpKernel::norm_backward_sums_any;
    }
  }
  // Returns the form of the second pass. A kept gradient needs no mask and no second part there.
  [[nodiscard]] int apply_bits() const { return keep ? 0 : bits(); }
  [[nodiscard]] OpKernel apply(const NormTiles& t) const {
    if (!t.vectors) return OpKernel::norm_backward_apply_any_1;
    switch (apply_bits()) {
      case 0:
        return OpKernel::norm_backward_apply;
      case 1:
        return OpKernel::norm_backward_apply_relu;
      case 5:
        return OpKernel::norm_backward_apply_relu_two;
      default:
        return OpKernel::norm_backward_apply_any;
    }
  }
};

[[nodiscard]] inline std::optional<OpKernel> once(NormBackwardForm f, DType type, const NormTiles& t) {
  if (!t.vectors) return {};
  const bool wide = vector_of(type) == 8;
  switch (f.bits()) {
    case 0:
      return OpKernel::norm_backward_once;
    case 1:
      return OpKernel::norm_backward_once_relu;
    case 11:
      return wide ? std::optional(OpKernel::norm_backward_once_keep) : std::nullopt;
    case 15:
      return wide ? std::optional(OpKernel::norm_backward_once_keep_two) : std::nullopt;
    default:
      return {};
  }
}

// Returns the tiles of an activation, NHWC.
[[nodiscard]] inline NormTiles norm_tiles(DType t, const Shape& s) { return {t, s.numel() / s[1], s[1]}; }
// The same for kernels that write or read the mask of a relu.
[[nodiscard]] inline NormTiles mask_tiles(const Shape& s) { return {std::int64_t{8}, s.numel() / s[1], s[1]}; }

// Runs norm_apply. spread: the inverse standard deviation, or, if from_variance is not 0, the variance. mask: null
// unless the form has one.
inline void run_norm_apply(Launcher& l, NormApplyForm form, const TensorRef& x, void* residual, void* y, void* mean,
                           void* spread, void* gamma, void* beta, void* mask, int from_variance, float eps) {
  const NormTiles t = form.mask ? mask_tiles(x.shape) : norm_tiles(x.dtype, x.shape);
  l.op(x.dtype, form.kernel(t), t.grid(), 256, x.data, residual, y, mean, spread, gamma, beta, mask, t.rows, t.channels,
       t.log_lanes, t.chunk, from_variance, eps, form.bits());
}

// Computes mean and inv_std, which are outputs 1 and 2 of the call, and the running statistics.
inline void run_norm_statistics(Launcher& l, const Workspace& w, float eps, float momentum, const Call& c) {
  const TensorRef& x = c.in[0];
  const NormTiles t = norm_tiles(x.dtype, x.shape);
  auto* const partial = w.at<float>(0);
  l.op(x.dtype, t.of(forms::norm_statistics), t.grid(), 256, x.data, static_cast<void*>(partial), t.rows, t.channels,
       t.log_lanes, t.chunk);
  l.op(x.dtype, OpKernel::norm_finish, t.finish_grid(), 256, partial, static_cast<int>(t.chunks), t.chunk, t.rows,
       t.channels, eps, momentum, c.in[3].data, c.in[4].data, c.out[1].data, c.out[2].data);
}

inline void run_batch_norm(Launcher& l, const NormOnce& n, const Workspace& w, const op::BatchNorm& o, const Call& c,
                           bool mask = false) {
  const TensorRef& x = c.in[0];
  const NormTiles t = norm_tiles(x.dtype, x.shape);
  auto* const partial = w.at<float>(0);
  void* const residual = o.residual ? c.in[5].data : nullptr;
  void* const bits = mask ? c.out[3].data : nullptr;
  const NormApplyForm form{o.relu, o.residual, mask};
  if (const auto kernel = once(form, x.dtype, t))
    if (n.run(x.dtype, *kernel, t.grid(), norm_bytes(t.bytes(x.dtype), o.residual), x.data, residual, c.out[0].data,
              c.out[1].data, c.out[2].data, c.in[1].data, c.in[2].data, bits, partial, c.in[3].data, c.in[4].data,
              n.arrived(), t.rows, t.channels, t.log_lanes, t.chunk, static_cast<int>(t.chunks), o.eps, o.momentum))
      return;
  run_norm_statistics(l, w, o.eps, o.momentum, c);
  run_norm_apply(l, form, x, residual, c.out[0].data, c.out[1].data, c.out[2].data, c.in[1].data, c.in[2].data, bits, 0,
                 o.eps);
}

inline void run_batch_norm_inference(Launcher& l, const op::BatchNormInference& o, const Call& c) {
  run_norm_apply(l, {o.relu, o.residual}, c.in[0], o.residual ? c.in[5].data : nullptr, c.out[0].data, c.in[3].data,
                 c.in[4].data, c.in[1].data, c.in[2].data, nullptr, o.saved_inv_std ? 0 : 1, o.eps);
}

// from_mask: the last input is the mask, not y.
inline void run_batch_norm_backward(Launcher& l, const NormOnce& n, const Workspace& w, const op::BatchNormBackward& o,
                                    const Call& c, bool from_mask = false) {
  std::size_t k = 0;
  void* const dy = c.in[k++].data;
  void* const dy2 = o.second ? c.in[k++].data : nullptr;
  const TensorRef& x = c.in[k++];
  void* const gamma = c.in[k++].data;
  void* const beta = c.in[k++].data;
  void* const mean = c.in[k++].data;
  void* const inv_std = c.in[k++].data;
  void* const y = o.relu && o.residual ? c.in[k].data : nullptr;
  void* const dresidual = o.residual ? c.out[3].data : nullptr;
  const NormBackwardForm form{!o.relu ? 0 : y == nullptr ? 1 : from_mask ? 3 : 2, o.second, o.residual};
  const NormTiles t = from_mask ? mask_tiles(x.shape) : norm_tiles(x.dtype, x.shape);
  auto* const partial = w.at<float>(0);
  auto* const means = w.at<float>(t.partial_bytes());
  if (const auto kernel = once(form, x.dtype, t))
    if (n.run(x.dtype, *kernel, t.grid(), norm_backward_bytes(t.bytes(x.dtype), o.second, form.keep), dy, dy2, x.data,
              y, mean, inv_std, gamma, beta, dresidual, partial, c.out[1].data, c.out[2].data, means, c.out[0].data,
              n.arrived(), t.rows, t.channels, t.log_lanes, t.chunk, static_cast<int>(t.chunks)))
      return;
  l.op(x.dtype, form.sums(t), t.grid(), 256, dy, dy2, x.data, y, mean, inv_std, gamma, beta, dresidual, partial, t.rows,
       t.channels, t.log_lanes, t.chunk, form.bits());
  l.op(x.dtype, OpKernel::norm_backward_finish, t.finish_grid(), 256, partial, static_cast<int>(t.chunks), t.rows,
       t.channels, c.out[1].data, c.out[2].data, means);
  const NormTiles a = norm_tiles(x.dtype, x.shape);
  l.op(x.dtype, form.apply(a), a.grid(), 256, form.keep ? dresidual : dy, dy2, x.data, mean, inv_std, gamma, beta,
       means, c.out[0].data, a.rows, a.channels, a.log_lanes, a.chunk, form.apply_bits());
}

// to[c] = the sum of column c of x, viewed as [rows, columns].
inline void run_column_sums(Launcher& l, const Workspace& w, const TensorRef& x, std::int64_t columns, void* to) {
  const NormTiles t(x.dtype, x.shape.numel() / columns, columns);
  auto* const partial = w.at<float>(0);
  l.op(x.dtype, t.of(forms::column_sums), t.grid(), 256, x.data, partial, t.rows, t.channels, t.log_lanes, t.chunk);
  l.op(x.dtype, OpKernel::column_sums_finish, t.finish_grid(), 256, partial, static_cast<int>(t.chunks), t.channels,
       to);
}

}  // namespace tutti::cuda
