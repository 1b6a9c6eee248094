// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/core/error.hpp>
#include <tutti/optim/update.hpp>

// Optimizer updates of the arenas by tutti's kernels. The host starts each pass. They are for steps that
// HostStepFinisher ends, with a user's own optimizer or a traced one, because the host computes their factors.
// CudaStepFinisher has kernels that read all factors from the device.
namespace tutti::cuda {

// The struct of kernels/update.hpp.
struct UpdateNumbers {
  float lr, weight_decay, gradient_scale, factor;
};
[[nodiscard]] inline UpdateNumbers update_numbers(const UpdateCall& u) {
  return {static_cast<float>(u.lr), static_cast<float>(u.weight_decay), static_cast<float>(u.gradient_scale),
          static_cast<float>(u.factor)};
}
struct AdamwNumbers {
  float beta1, rest1, beta2, rest2, eps;
  std::int32_t l2;
};
[[nodiscard]] inline AdamwNumbers adamw_numbers(const AdamwUpdate& o) {
  return {static_cast<float>(o.beta1),     static_cast<float>(1 - o.beta1), static_cast<float>(o.beta2),
          static_cast<float>(1 - o.beta2), static_cast<float>(o.eps),       o.l2 ? 1 : 0};
}
struct LambNumbers {
  float beta1, rest1, beta2, rest2, eps;
  std::int32_t trust_clip, always_adapt;
};
[[nodiscard]] inline LambNumbers lamb_numbers(const LambUpdate& o) {
  return {static_cast<float>(o.beta1),     static_cast<float>(1 - o.beta1), static_cast<float>(o.beta2),
          static_cast<float>(1 - o.beta2), static_cast<float>(o.eps),       o.trust_clip ? 1 : 0,
          o.always_adapt ? 1 : 0};
}
// Returns 1 / (1 - beta^step).
[[nodiscard]] inline double bias_correction(double beta, std::int64_t step) {
  return 1 / (1 - std::pow(beta, static_cast<double>(step)));
}

inline void require_master(DType t) {
  if (t != DType::f32) fail<UsageError>("cuda", "f32 master weights", name_of(t));
}

template <class... P>
[[nodiscard]] bool aligned(const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

// vectors: all addresses are multiples of 16 bytes.
template <class... A>
void run_over(Launcher& l, Forms<UpdateKernel> k, bool vectors, std::int64_t n, A... arguments) {
  l.update(k.of(vectors), l.blocks(vectors ? (n + 3) / 4 : n), Launcher::block, arguments...);
}

// sums: of squared_norms_bytes, for rules that take norms.
inline void run_update(Launcher& l, const SgdUpdate& o, const UpdateCall& u, double* /*sums*/) {
  require_master(u.dtype);
  const auto n = static_cast<std::int64_t>(u.count);
  run_over(l, update_forms::sgd, aligned(u.weights, u.gradients, u.slots[0]), n, u.weights, u.gradients, u.slots[0], n,
           update_numbers(u), static_cast<float>(o.momentum), o.nesterov ? 1 : 0);
}

inline void run_update(Launcher& l, const AdamwUpdate& o, const UpdateCall& u, double* /*sums*/) {
  require_master(u.dtype);
  const auto n = static_cast<std::int64_t>(u.count);
  const auto inverse = [&](double beta) { return static_cast<float>(bias_correction(beta, u.step)); };
  run_over(l, update_forms::adamw, aligned(u.weights, u.gradients, u.slots[0], u.slots[1]), n, u.weights, u.gradients,
           u.slots[0], u.slots[1], n, update_numbers(u), adamw_numbers(o), inverse(o.beta1), inverse(o.beta2));
}

// Space for the result, followed by the partial sums of 1,024 blocks.
inline constexpr std::int64_t norm_blocks = 1024;
inline constexpr std::size_t squared_norms_bytes = (2 + 2 * static_cast<std::size_t>(norm_blocks)) * sizeof(double);
// Returns the number of blocks with a partial sum, 16 values a thread. It depends on n only.
[[nodiscard]] inline std::int64_t blocks_of_norms(std::int64_t n) {
  return std::clamp<std::int64_t>(n / (16 * Launcher::block), 1, norm_blocks);
}

// to: squared_norms_bytes. Writes the squared norms of the weights and of the gradients to its first two numbers.
inline void run_squared_norms(Launcher& l, const UpdateCall& u, double* to) {
  require_master(u.dtype);
  const auto n = static_cast<std::int64_t>(u.count);
  const std::int64_t blocks = blocks_of_norms(n);
  double* const partial = to + 2;
  l.update(update_forms::squared_norms.of(aligned(u.weights, u.gradients)), dim3(static_cast<unsigned>(blocks)),
           Launcher::block, u.weights, u.gradients, n, static_cast<float>(u.gradient_scale),
           static_cast<float>(u.weight_decay), partial);
  l.update(UpdateKernel::squared_norms_finish, dim3(1), Launcher::block, partial, static_cast<int>(blocks), to);
}

// The sums are taken between its two passes.
inline void run_update(Launcher& l, const LambUpdate& o, const UpdateCall& u, double* sums) {
  require_master(u.dtype);
  const auto n = static_cast<std::int64_t>(u.count);
  const auto c1 = static_cast<float>(bias_correction(o.beta1, u.step)),
             c2 = static_cast<float>(bias_correction(o.beta2, u.step));
  const std::int64_t blocks = blocks_of_norms(n);
  const bool vectors = aligned(u.weights, u.gradients, u.slots[0], u.slots[1]);
  double* const partial = sums + 2;
  l.update(update_forms::lamb_moments.of(vectors), dim3(static_cast<unsigned>(blocks)), Launcher::block, u.weights,
           u.gradients, u.slots[0], u.slots[1], n, update_numbers(u), lamb_numbers(o), c1, c2, partial);
  l.update(UpdateKernel::squared_norms_finish, dim3(1), Launcher::block, partial, static_cast<int>(blocks), sums);
  run_over(l, update_forms::lamb_step, vectors, n, u.weights, u.slots[0], u.slots[1], n, update_numbers(u),
           lamb_numbers(o), c1, c2, sums);
}

inline void run_average(Launcher& l, DType t, void* to, const void* from, std::size_t count, double decay) {
  require_master(t);
  const auto n = static_cast<std::int64_t>(count);
  run_over(l, update_forms::average, aligned(to, from), n, to, from, n, static_cast<float>(decay));
}

inline void run_accumulate(Launcher& l, DType t, void* to, const void* from, std::size_t count) {
  require_master(t);
  const auto n = static_cast<std::int64_t>(count);
  run_over(l, update_forms::accumulate, aligned(to, from), n, to, from, n);
}

}  // namespace tutti::cuda
