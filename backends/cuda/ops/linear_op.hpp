// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <tutti/backends/cuda/cublas/gemm_layout.hpp>
#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/ops/norm_ops.hpp>
#include <tutti/backends/cuda/workspace.hpp>
#include <tutti/engine/call.hpp>

// Fully connected layers: matrix products by the library, and the remaining work by tutti's kernels. G: the library's
// class.
namespace tutti::cuda {

// x and y: tensors of the forward direction. If y has 16 bits, the product is in f32, so that y is rounded once, after
// the bias has been added.
[[nodiscard]] inline LinearProblem linear_problem(LinearPass pass, const TensorDesc& x, const TensorDesc& y) {
  return {x.shape[0], x.shape.row_numel(), y.shape.row_numel(), x.dtype,
          pass == LinearPass::forward && x.dtype != DType::f32};
}
[[nodiscard]] inline LinearProblem linear_problem(LinearPass pass, const TensorRef& x, const TensorRef& y) {
  return linear_problem(pass, TensorDesc{x.shape, x.dtype}, TensorDesc{y.shape, y.dtype});
}

// Returns the workspace for y in f32, or for the partial sums of the bias gradient, in bytes. The library's own
// workspace follows it.
[[nodiscard]] inline std::size_t linear_own_bytes(LinearPass pass, const LinearProblem& p) {
  if (pass == LinearPass::backward_weights)
    return Workspace::round_up(NormTiles(p.type, p.rows, p.outputs).workspace_bytes());
  return p.wide ? Workspace::round_up(static_cast<std::size_t>(p.rows * p.outputs) * sizeof(float)) : 0;
}
template <class G>
[[nodiscard]] std::size_t linear_workspace_bytes(G& gemms, LinearPass pass, const LinearProblem& p) {
  const bool with_bias = pass == LinearPass::backward_weights || (pass == LinearPass::forward && !p.wide);
  return linear_own_bytes(pass, p) + gemms.workspace_bytes(pass, p, with_bias);
}

template <class G>
void run_linear(G& gemms, Launcher& l, const Workspace& w, const Call& c) {
  const LinearProblem p = linear_problem(LinearPass::forward, c.in[0], c.out[0]);
  const TensorRef& y = c.out[0];
  const std::int64_t n = y.shape.numel();
  const int columns = static_cast<int>(p.outputs);
  void* const rest = w.at<void>(linear_own_bytes(LinearPass::forward, p));
  if (p.wide) {
    void* const wide = w.at<void>(0);
    gemms.run(LinearPass::forward, p, c.in[0].data, c.in[1].data, nullptr, wide, rest, l.device().stream());
    l.op(y.dtype, OpKernel::bias_cast, l.blocks(n), Launcher::block, wide, c.in[2].data, y.data, columns, n);
  } else if (!gemms.run(LinearPass::forward, p, c.in[0].data, c.in[1].data, c.in[2].data, y.data, rest,
                        l.device().stream())) {
    l.op(y.dtype, OpKernel::bias_forward_1, l.blocks(n), Launcher::block, y.data, c.in[2].data, y.data, columns, n);
  }
}

template <class G>
void run_linear_backward_data(G& gemms, const Workspace& w, cudaStream_t stream, const Call& c) {
  const LinearProblem p = linear_problem(LinearPass::backward_data, c.out[0], c.in[0]);
  gemms.run(LinearPass::backward_data, p, c.in[0].data, c.in[1].data, nullptr, c.out[0].data, w.at<void>(0), stream);
}

template <class G>
void run_linear_backward_weights(G& gemms, Launcher& l, const Workspace& w, const Call& c) {
  const LinearProblem p = linear_problem(LinearPass::backward_weights, c.in[0], c.in[1]);
  void* const rest = w.at<void>(linear_own_bytes(LinearPass::backward_weights, p));
  if (!gemms.run(LinearPass::backward_weights, p, c.in[0].data, c.in[1].data, c.out[1].data, c.out[0].data, rest,
                 l.device().stream()))
    run_column_sums(l, w, c.in[1], p.outputs, c.out[1].data);
}

}  // namespace tutti::cuda
