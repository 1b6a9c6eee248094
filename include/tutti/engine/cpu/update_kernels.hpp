// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <tutti/core/isa.hpp>
#include <tutti/core/math.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/optim/update.hpp>

// Optimizer passes over f32 arenas, with one read and one write of each array. Plain loops, which the compiler
// vectorises for each instruction set.
namespace tutti::cpu {

template <Isa>
TUTTI_INLINE void sgd_body(SgdUpdate o, UpdateCall u) {
  auto* __restrict w = static_cast<float*>(u.weights);
  const auto* __restrict g = static_cast<const float*>(u.gradients);
  auto* __restrict a = static_cast<float*>(u.slots[0]);
  const auto momentum = static_cast<float>(o.momentum), lr = static_cast<float>(u.lr);
  const auto scale = static_cast<float>(u.factor * u.gradient_scale);
  const auto decay = static_cast<float>(u.factor * u.weight_decay);
  const float look_ahead = o.nesterov ? momentum : 1.0F, direct = o.nesterov ? 1.0F : 0.0F;
  TUTTI_INDEPENDENT
  for (std::size_t i = 0; i < u.count; ++i) {
    const float grad = scale * g[i] + decay * w[i];
    const float acc = momentum * a[i] + grad;
    a[i] = acc;
    w[i] -= lr * (direct * grad + look_ahead * acc);
  }
}
TUTTI_DEFINE_DISPATCH(sgd, sgd_body);
TUTTI_CORE_INSTANCE(template void sgd<>(Isa, SgdUpdate, UpdateCall));

template <Isa>
TUTTI_INLINE void adamw_body(AdamwUpdate o, UpdateCall u) {
  auto* __restrict w = static_cast<float*>(u.weights);
  const auto* __restrict g = static_cast<const float*>(u.gradients);
  auto* __restrict m = static_cast<float*>(u.slots[0]);
  auto* __restrict v = static_cast<float*>(u.slots[1]);
  const double c1 = 1 - math::pow(o.beta1, static_cast<double>(u.step));
  const double c2 = 1 - math::pow(o.beta2, static_cast<double>(u.step));
  const auto b1 = static_cast<float>(o.beta1), b2 = static_cast<float>(o.beta2), eps = static_cast<float>(o.eps);
  const auto n1 = static_cast<float>(1 - o.beta1), n2 = static_cast<float>(1 - o.beta2);
  const auto rate = static_cast<float>(u.lr / c1), inv_c2 = static_cast<float>(1 / c2);
  const auto scale = static_cast<float>(u.factor * u.gradient_scale);
  const auto decay = static_cast<float>(o.l2 ? u.factor * u.weight_decay : 0);
  const auto keep = static_cast<float>(o.l2 ? 1 : 1 - u.lr * u.weight_decay);
  TUTTI_INDEPENDENT
  for (std::size_t i = 0; i < u.count; ++i) {
    const float grad = scale * g[i] + decay * w[i];
    m[i] = b1 * m[i] + n1 * grad;
    v[i] = b2 * v[i] + n2 * grad * grad;
    w[i] = w[i] * keep - rate * m[i] / (__builtin_sqrtf(v[i] * inv_c2) + eps);
  }
}
TUTTI_DEFINE_DISPATCH(adamw, adamw_body);
TUTTI_CORE_INSTANCE(template void adamw<>(Isa, AdamwUpdate, UpdateCall));

// The numbers of LAMB's direction in this step.
struct LambNumbers {
  float scale, b1, n1, b2, n2, inv_c1, inv_c2, eps, decay;
  LambNumbers(const LambUpdate& o, const UpdateCall& u)
      : scale(static_cast<float>(u.factor * u.gradient_scale)),
        b1(static_cast<float>(o.beta1)),
        n1(static_cast<float>(1 - o.beta1)),
        b2(static_cast<float>(o.beta2)),
        n2(static_cast<float>(1 - o.beta2)),
        inv_c1(static_cast<float>(1 / (1 - math::pow(o.beta1, static_cast<double>(u.step))))),
        inv_c2(static_cast<float>(1 / (1 - math::pow(o.beta2, static_cast<double>(u.step))))),
        eps(static_cast<float>(o.eps)),
        decay(static_cast<float>(u.weight_decay)) {}
  [[nodiscard]] TUTTI_INLINE float direction(float w, float m, float v) const {
    return m * inv_c1 / (__builtin_sqrtf(v * inv_c2) + eps) + decay * w;
  }
  // Updates the moments of an element, and adds its squares to the sums.
  TUTTI_INLINE void element(float w, float g, float& m, float& v, double& weights, double& directions) const {
    const float grad = scale * g;
    m = b1 * m + n1 * grad;
    v = b2 * v + n2 * grad * grad;
    const auto a = static_cast<double>(w), d = static_cast<double>(direction(w, m, v));
    weights += a * a;
    directions += d * d;
  }
};

// Without `rate`: updates the moments and adds up the squares of the weights and of the direction, in f64. With it:
// takes the step.
template <Isa>
TUTTI_INLINE void lamb_body(LambNumbers o, UpdateCall u, const float* rate, SquaredNorms* norms) {
  auto* __restrict w = static_cast<float*>(u.weights);
  const auto* __restrict g = static_cast<const float*>(u.gradients);
  auto* __restrict m = static_cast<float*>(u.slots[0]);
  auto* __restrict v = static_cast<float*>(u.slots[1]);
  if (rate != nullptr) {
    const float lr = *rate;
    TUTTI_INDEPENDENT
    for (std::size_t i = 0; i < u.count; ++i) w[i] -= lr * o.direction(w[i], m[i], v[i]);
    return;
  }
  // A fixed order of the sums that has vector instructions.
  constexpr std::size_t lanes = 16;
  double weights[lanes] = {}, directions[lanes] = {};
  std::size_t i = 0;
  for (; i + lanes <= u.count; i += lanes) {
    TUTTI_INDEPENDENT
    for (std::size_t j = 0; j < lanes; ++j)
      o.element(w[i + j], g[i + j], m[i + j], v[i + j], weights[j], directions[j]);
  }
  for (; i < u.count; ++i) o.element(w[i], g[i], m[i], v[i], weights[i % lanes], directions[i % lanes]);
  *norms = {};
  for (std::size_t j = 0; j < lanes; ++j) {
    norms->weights += weights[j];
    norms->gradients += directions[j];
  }
}
TUTTI_DEFINE_DISPATCH(lamb, lamb_body);
TUTTI_CORE_INSTANCE(template void lamb<>(Isa, LambNumbers, UpdateCall, const float*, SquaredNorms*));

template <Isa>
TUTTI_INLINE void average_body(float* to, const float* from, std::size_t n, float decay) {
  const float rest = 1 - decay;
  TUTTI_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) to[i] = decay * to[i] + rest * from[i];
}
TUTTI_DEFINE_DISPATCH(average, average_body);
TUTTI_CORE_INSTANCE(template void average<>(Isa, float*, const float*, std::size_t, float));

template <Isa>
TUTTI_INLINE void accumulate_body(float* to, const float* from, std::size_t n) {
  TUTTI_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) to[i] += from[i];
}
TUTTI_DEFINE_DISPATCH(accumulate, accumulate_body);
TUTTI_CORE_INSTANCE(template void accumulate<>(Isa, float*, const float*, std::size_t));

}  // namespace tutti::cpu
