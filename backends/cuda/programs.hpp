// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include <tutti/backends/cuda/kernels/common.hpp>
#include <tutti/backends/cuda/kernels/elementwise.hpp>
#include <tutti/backends/cuda/kernels/fused.hpp>
#include <tutti/backends/cuda/kernels/input.hpp>
#include <tutti/backends/cuda/kernels/loss.hpp>
#include <tutti/backends/cuda/kernels/norm.hpp>
#include <tutti/backends/cuda/kernels/pool.hpp>
#include <tutti/backends/cuda/kernels/step.hpp>
#include <tutti/backends/cuda/kernels/update.hpp>
#include <tutti/backends/cuda/nvrtc.hpp>
#include <tutti/core/dtype.hpp>

// Our kernels as two programs: the ops of one compute type, and the updates of the master weights.
namespace tutti::cuda {

// In a name, T is the compute type and V the number of its values in 16 bytes. Kernels that want the channels to be a
// multiple of V have a second form for one value.
enum class OpKernel : std::size_t {
  normalize,
  normalize_padded_4,
  normalize_padded_8,
  relu_forward,
  relu_backward,
  gelu_forward,
  gelu_backward,
  add,
  bias_forward,
  bias_forward_1,
  bias_cast,
  change_channels,
  pack_weights,
  pack_table,
  unpack_gradient,
  cast,
  norm_statistics,
  norm_statistics_1,
  norm_finish,
  norm_apply,
  norm_apply_1,
  norm_backward_sums,
  norm_backward_sums_1,
  norm_backward_finish,
  norm_backward_apply,
  norm_backward_apply_1,
  column_sums,
  column_sums_1,
  column_sums_finish,
  norm_sums_finish,
  norm_from_sums,
  activate,
  activate_1,
  norm_backward_factors,
  norm_backward_affine,
  norm_backward_affine_1,
  max_pool,
  max_pool_1,
  max_pool_backward,
  max_pool_backward_1,
  average_pool,
  average_pool_1,
  average_pool_backward,
  average_pool_backward_1,
  set_scale,
  softmax_rows,
  loss_finish,
  count
};
inline constexpr std::array<std::string_view, static_cast<std::size_t>(OpKernel::count)> op_kernel_names{
    "normalize<T, V>",
    "normalize_padded<T, 4>",
    "normalize_padded<T, 8>",
    "relu_forward<T, V>",
    "relu_backward<T, V>",
    "gelu_forward<T, V>",
    "gelu_backward<T, V>",
    "add<T, V>",
    "bias_forward<T, V>",
    "bias_forward<T, 1>",
    "bias_cast<T>",
    "change_channels<T>",
    "pack_weights<T>",
    "pack_table<T>",
    "unpack_gradient<T>",
    "cast<T, V>",
    "norm_statistics<T, V>",
    "norm_statistics<T, 1>",
    "norm_finish",
    "norm_apply<T, V>",
    "norm_apply<T, 1>",
    "norm_backward_sums<T, V>",
    "norm_backward_sums<T, 1>",
    "norm_backward_finish",
    "norm_backward_apply<T, V>",
    "norm_backward_apply<T, 1>",
    "column_sums<T, V>",
    "column_sums<T, 1>",
    "column_sums_finish",
    "norm_sums_finish",
    "norm_from_sums<T>",
    "activate<T, V>",
    "activate<T, 1>",
    "norm_backward_factors",
    "norm_backward_affine<T, V>",
    "norm_backward_affine<T, 1>",
    "max_pool<T, V>",
    "max_pool<T, 1>",
    "max_pool_backward<T, V>",
    "max_pool_backward<T, 1>",
    "average_pool<T, V>",
    "average_pool<T, 1>",
    "average_pool_backward<T, V>",
    "average_pool_backward<T, 1>",
    "set_scale",
    "softmax_rows<T>",
    "loss_finish"};

enum class UpdateKernel : std::size_t {
  sgd,
  sgd_1,
  adamw,
  adamw_1,
  squared_norms,
  squared_norms_1,
  squared_norms_finish,
  average,
  average_1,
  accumulate,
  accumulate_1,
  step_begin,
  step_metrics,
  step_norms_1,
  step_norms_3,
  step_run_norms,
  step_decide,
  step_sgd,
  step_adamw,
  step_mean,
  step_average,
  count
};
inline constexpr std::array<std::string_view, static_cast<std::size_t>(UpdateKernel::count)> update_kernel_names{
    "sgd<4>",
    "sgd<1>",
    "adamw<4>",
    "adamw<1>",
    "squared_norms<4>",
    "squared_norms<1>",
    "squared_norms_finish",
    "average<4>",
    "average<1>",
    "accumulate<4>",
    "accumulate<1>",
    "step_begin",
    "step_metrics",
    "step_norms<1>",
    "step_norms<3>",
    "step_run_norms",
    "step_decide",
    "step_sgd",
    "step_adamw",
    "step_mean",
    "step_average"};

enum class InputKernel : std::size_t { gather_images, gather_images_1, count };
inline constexpr std::array<std::string_view, static_cast<std::size_t>(InputKernel::count)> input_kernel_names{
    "gather_images<16>", "gather_images<1>"};

// The types that kernels exist for.
[[nodiscard]] constexpr bool is_compute_type(DType t) noexcept {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16;
}
// Values of t in 16 bytes.
[[nodiscard]] constexpr int vector_of(DType t) noexcept { return static_cast<int>(16 / size_of(t)); }

[[nodiscard]] inline Source op_source(DType t) {
  const std::string type = t == DType::f32 ? "float" : std::string(name_of(t));
  Source s{"ops-" + std::string(name_of(t)),
           std::string(kernels::common) + kernels::elementwise + kernels::norm + kernels::fused + kernels::pool +
               kernels::loss,
           {}};
  for (std::string_view pattern : op_kernel_names) {
    std::string name;
    for (char c : pattern) name += c == 'T' ? type : c == 'V' ? std::to_string(vector_of(t)) : std::string(1, c);
    s.kernels.push_back(std::move(name));
  }
  return s;
}

[[nodiscard]] inline Source update_source() {
  return {"updates",
          std::string(kernels::common) + kernels::update + kernels::step,
          {update_kernel_names.begin(), update_kernel_names.end()}};
}

[[nodiscard]] inline Source input_source() {
  return {
      "input", std::string(kernels::common) + kernels::input, {input_kernel_names.begin(), input_kernel_names.end()}};
}

}  // namespace tutti::cuda
