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
#include <tutti/backends/cuda/kernels/integers.hpp>
#include <tutti/backends/cuda/kernels/loss.hpp>
#include <tutti/backends/cuda/kernels/muon.hpp>
#include <tutti/backends/cuda/kernels/norm.hpp>
#include <tutti/backends/cuda/kernels/norm_kernels.hpp>
#include <tutti/backends/cuda/kernels/norm_shortcut.hpp>
#include <tutti/backends/cuda/kernels/pool.hpp>
#include <tutti/backends/cuda/kernels/step.hpp>
#include <tutti/backends/cuda/kernels/update.hpp>
#include <tutti/backends/cuda/nvrtc.hpp>
#include <tutti/core/dtype.hpp>

// tutti's kernels as two programs: the ops of one compute type, and the updates of the master weights.
namespace tutti::cuda {

// The list of all kernels. ONE(number, name): a kernel with one form. TWO(name): a kernel with a second form, `name`_1,
// for channels that are not a multiple of V. In a name, T is the compute type and V the number of its values in 16
// bytes. The last template argument of the batch norm kernels is their form (kernels/norm.hpp); -1: the form is an
// argument at run time.
#define TUTTI_CUDA_OP_KERNELS(ONE, TWO)                                           \
  ONE(normalize, "normalize<T, V>")                                               \
  ONE(normalize_padded_4, "normalize_padded<T, 4>")                               \
  ONE(normalize_padded_8, "normalize_padded<T, 8>")                               \
  ONE(relu_forward, "relu_forward<T, V>")                                         \
  ONE(relu_backward, "relu_backward<T, V>")                                       \
  ONE(gelu_forward, "gelu_forward<T, V>")                                         \
  ONE(gelu_backward, "gelu_backward<T, V>")                                       \
  ONE(sigmoid_forward, "sigmoid_forward<T, V>")                                   \
  ONE(sigmoid_backward, "sigmoid_backward<T, V>")                                 \
  ONE(silu_forward, "silu_forward<T, V>")                                         \
  ONE(silu_backward, "silu_backward<T, V>")                                       \
  ONE(hard_swish_forward, "hard_swish_forward<T, V>")                             \
  ONE(hard_swish_backward, "hard_swish_backward<T, V>")                           \
  ONE(add, "add<T, V>")                                                           \
  TWO(bias_forward)                                                               \
  ONE(bias_cast, "bias_cast<T>")                                                  \
  ONE(change_channels, "change_channels<T>")                                      \
  ONE(pack_table, "pack_table<T>")                                                \
  ONE(unpack_gradients, "unpack_gradients<T>")                                    \
  TWO(norm_statistics)                                                            \
  ONE(norm_finish, "norm_finish")                                                 \
  ONE(norm_apply, "norm_apply<T, V, 0>")                                          \
  ONE(norm_apply_relu, "norm_apply<T, V, 1>")                                     \
  ONE(norm_apply_add_relu, "norm_apply<T, V, 3>")                                 \
  ONE(norm_apply_add_relu_bits, "norm_apply<T, 8, 7>")                            \
  ONE(norm_apply_any, "norm_apply<T, V, -1>")                                     \
  ONE(norm_apply_any_1, "norm_apply<T, 1, -1>")                                   \
  ONE(norm_backward_sums, "norm_backward_sums<T, V, 0>")                          \
  ONE(norm_backward_sums_relu, "norm_backward_sums<T, V, 1>")                     \
  ONE(norm_backward_sums_relu_two, "norm_backward_sums<T, V, 5>")                 \
  ONE(norm_backward_sums_keep, "norm_backward_sums<T, 8, 11>")                    \
  ONE(norm_backward_sums_keep_two, "norm_backward_sums<T, 8, 15>")                \
  ONE(norm_backward_sums_any, "norm_backward_sums<T, V, -1>")                     \
  ONE(norm_backward_sums_any_1, "norm_backward_sums<T, 1, -1>")                   \
  ONE(norm_backward_finish, "norm_backward_finish")                               \
  ONE(norm_backward_apply, "norm_backward_apply<T, V, 0>")                        \
  ONE(norm_backward_apply_relu, "norm_backward_apply<T, V, 1>")                   \
  ONE(norm_backward_apply_relu_two, "norm_backward_apply<T, V, 5>")               \
  ONE(norm_backward_apply_any, "norm_backward_apply<T, V, -1>")                   \
  ONE(norm_backward_apply_any_1, "norm_backward_apply<T, 1, -1>")                 \
  ONE(norm_once, "norm_once<T, V, 0>")                                            \
  ONE(norm_once_relu, "norm_once<T, V, 1>")                                       \
  ONE(norm_once_add_relu_bits, "norm_once<T, 8, 7>")                              \
  ONE(norm_backward_once, "norm_backward_once<T, V, 0>")                          \
  ONE(norm_backward_once_relu, "norm_backward_once<T, V, 1>")                     \
  ONE(norm_backward_once_keep, "norm_backward_once<T, 8, 11>")                    \
  ONE(norm_backward_once_keep_two, "norm_backward_once<T, 8, 15>")                \
  ONE(norm_apply_shortcut, "norm_apply_shortcut<T, 8>")                           \
  ONE(norm_backward_sums_shortcut, "norm_backward_sums_shortcut<T, 8, 3>")        \
  ONE(norm_backward_sums_shortcut_two, "norm_backward_sums_shortcut<T, 8, 15>")   \
  ONE(norm_backward_finish_shortcut, "norm_backward_finish_shortcut")             \
  ONE(norm_backward_apply_shortcut, "norm_backward_apply_shortcut<T, 8, 3>")      \
  ONE(norm_backward_apply_shortcut_kept, "norm_backward_apply_shortcut<T, 8, 0>") \
  TWO(column_sums)                                                                \
  ONE(column_sums_finish, "column_sums_finish")                                   \
  ONE(norm_sums_finish, "norm_sums_finish")                                       \
  ONE(norm_from_sums, "norm_from_sums<T>")                                        \
  ONE(relu_mask, "relu_mask<T>")                                                  \
  TWO(activate)                                                                   \
  ONE(norm_backward_factors, "norm_backward_factors")                             \
  TWO(norm_backward_affine)                                                       \
  TWO(max_pool)                                                                   \
  TWO(max_pool_backward)                                                          \
  TWO(window_average)                                                             \
  TWO(window_average_backward)                                                    \
  TWO(average_pool)                                                               \
  TWO(average_pool_backward)                                                      \
  ONE(softmax_rows, "softmax_rows<T>")                                            \
  ONE(loss_finish, "loss_finish")

// The list of kernels over arenas. The second form is for addresses that are not a multiple of 16 bytes.
#define TUTTI_CUDA_UPDATE_KERNELS(ONE, TWO)         \
  TWO(sgd)                                          \
  TWO(adamw)                                        \
  TWO(lamb_moments)                                 \
  TWO(lamb_step)                                    \
  TWO(squared_norms)                                \
  ONE(squared_norms_finish, "squared_norms_finish") \
  TWO(average)                                      \
  TWO(accumulate)                                   \
  ONE(to_integers, "to_integers")                   \
  ONE(from_integers, "from_integers")               \
  ONE(set_scale, "set_scale")                       \
  ONE(step_begin, "step_begin")                     \
  ONE(step_metrics, "step_metrics")                 \
  ONE(step_norms_1, "step_norms<1>")                \
  ONE(step_norms_3, "step_norms<3>")                \
  ONE(step_run_norms, "step_run_norms")             \
  ONE(step_decide, "step_decide")                   \
  ONE(step_sgd, "step_sgd")                         \
  ONE(step_adamw, "step_adamw")                     \
  ONE(step_lamb_moments, "step_lamb_moments")       \
  ONE(step_lamb, "step_lamb")                       \
  ONE(step_mean, "step_mean")                       \
  ONE(step_average, "step_average")                 \
  ONE(muon_momentum, "muon_momentum")               \
  ONE(muon_scale, "muon_scale")                     \
  ONE(muon_product, "muon_product")                 \
  ONE(muon_step, "muon_step")

#define TUTTI_CUDA_NUMBER(number, name) number,
#define TUTTI_CUDA_NUMBERS(name) name, name##_1,
#define TUTTI_CUDA_NAME(number, name) name,
#define TUTTI_CUDA_OP_NAMES(name) #name "<T, V>", #name "<T, 1>",
#define TUTTI_CUDA_UPDATE_NAMES(name) #name "<4>", #name "<1>",
#define TUTTI_CUDA_NO_FORMS(number, name)
#define TUTTI_CUDA_OP_FORMS(name) inline constexpr Forms<OpKernel> name{OpKernel::name, OpKernel::name##_1};
#define TUTTI_CUDA_UPDATE_FORMS(name) \
  inline constexpr Forms<UpdateKernel> name{UpdateKernel::name, UpdateKernel::name##_1};

enum class OpKernel : std::size_t { TUTTI_CUDA_OP_KERNELS(TUTTI_CUDA_NUMBER, TUTTI_CUDA_NUMBERS) count };
inline constexpr std::array<std::string_view, static_cast<std::size_t>(OpKernel::count)> op_kernel_names{
    TUTTI_CUDA_OP_KERNELS(TUTTI_CUDA_NAME, TUTTI_CUDA_OP_NAMES)};
enum class UpdateKernel : std::size_t { TUTTI_CUDA_UPDATE_KERNELS(TUTTI_CUDA_NUMBER, TUTTI_CUDA_NUMBERS) count };
inline constexpr std::array<std::string_view, static_cast<std::size_t>(UpdateKernel::count)> update_kernel_names{
    TUTTI_CUDA_UPDATE_KERNELS(TUTTI_CUDA_NAME, TUTTI_CUDA_UPDATE_NAMES)};

// A kernel for whole vectors, and the same kernel for single values.
template <class K>
struct Forms {
  K vectors, single;
  [[nodiscard]] constexpr K of(bool with_vectors) const noexcept { return with_vectors ? vectors : single; }
};
namespace forms {
TUTTI_CUDA_OP_KERNELS(TUTTI_CUDA_NO_FORMS, TUTTI_CUDA_OP_FORMS)
}  // namespace forms
namespace update_forms {
TUTTI_CUDA_UPDATE_KERNELS(TUTTI_CUDA_NO_FORMS, TUTTI_CUDA_UPDATE_FORMS)
}  // namespace update_forms

#undef TUTTI_CUDA_OP_KERNELS
#undef TUTTI_CUDA_UPDATE_KERNELS
#undef TUTTI_CUDA_NUMBER
#undef TUTTI_CUDA_NUMBERS
#undef TUTTI_CUDA_NAME
#undef TUTTI_CUDA_OP_NAMES
#undef TUTTI_CUDA_UPDATE_NAMES
#undef TUTTI_CUDA_NO_FORMS
#undef TUTTI_CUDA_OP_FORMS
#undef TUTTI_CUDA_UPDATE_FORMS

enum class InputKernel : std::size_t { gather_images, gather_images_1, count };
inline constexpr std::array<std::string_view, static_cast<std::size_t>(InputKernel::count)> input_kernel_names{
    "gather_images<16>", "gather_images<1>"};

// Returns whether there are kernels for this type.
[[nodiscard]] constexpr bool is_compute_type(DType t) noexcept {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16;
}
// Returns the number of values of type t in 16 bytes.
[[nodiscard]] constexpr int vector_of(DType t) noexcept { return static_cast<int>(16 / size_of(t)); }

[[nodiscard]] inline Source op_source(DType t) {
  const std::string type = t == DType::f32 ? "float" : std::string(name_of(t));
  Source s{"ops-" + std::string(name_of(t)),
           std::string(kernels::common) + kernels::elementwise + kernels::norm + kernels::norm_kernels +
               kernels::norm_shortcut + kernels::fused + kernels::pool + kernels::loss,
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
          std::string(kernels::common) + kernels::update + kernels::integers + kernels::step + kernels::muon,
          {update_kernel_names.begin(), update_kernel_names.end()}};
}

[[nodiscard]] inline Source input_source() {
  return {
      "input", std::string(kernels::common) + kernels::input, {input_kernel_names.begin(), input_kernel_names.end()}};
}

}  // namespace tutti::cuda
