// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <tutti/core/math.hpp>
#include <tutti/optim/update.hpp>

// The optimizers' rules as simple loops.
namespace tutti::reference {

template <class M>
void update(const SgdUpdate& o, const UpdateCall& u) {
  M* w = static_cast<M*>(u.weights);
  const M* g = static_cast<const M*>(u.gradients);
  M* a = static_cast<M*>(u.slots[0]);
  for (std::size_t i = 0; i < u.count; ++i) {
    const double wi = static_cast<double>(w[i]);
    const double grad = u.factor * (u.gradient_scale * static_cast<double>(g[i]) + u.weight_decay * wi);
    const double acc = o.momentum * static_cast<double>(a[i]) + grad;
    a[i] = static_cast<M>(acc);
    w[i] = static_cast<M>(wi - u.lr * (o.nesterov ? grad + o.momentum * acc : acc));
  }
}

template <class M>
void update(const AdamwUpdate& o, const UpdateCall& u) {
  M* w = static_cast<M*>(u.weights);
  const M* g = static_cast<const M*>(u.gradients);
  M *m = static_cast<M*>(u.slots[0]), *v = static_cast<M*>(u.slots[1]);
  const double c1 = 1 - math::pow(o.beta1, static_cast<double>(u.step)),
               c2 = 1 - math::pow(o.beta2, static_cast<double>(u.step));
  for (std::size_t i = 0; i < u.count; ++i) {
    const double grad = u.factor * u.gradient_scale * static_cast<double>(g[i]);
    const double mi = o.beta1 * static_cast<double>(m[i]) + (1 - o.beta1) * grad;
    const double vi = o.beta2 * static_cast<double>(v[i]) + (1 - o.beta2) * grad * grad;
    m[i] = static_cast<M>(mi);
    v[i] = static_cast<M>(vi);
    const double wi = static_cast<double>(w[i]) * (1 - u.lr * u.weight_decay);
    w[i] = static_cast<M>(wi - u.lr * (mi / c1) / (math::sqrt(vi / c2) + o.eps));
  }
}

template <class M>
SquaredNorms squared_norms(const UpdateCall& u) {
  const M* w = static_cast<const M*>(u.weights);
  const M* g = static_cast<const M*>(u.gradients);
  SquaredNorms r;
  for (std::size_t i = 0; i < u.count; ++i) {
    const double wi = static_cast<double>(w[i]);
    const double grad = u.gradient_scale * static_cast<double>(g[i]) + u.weight_decay * wi;
    r.weights += wi * wi;
    r.gradients += grad * grad;
  }
  return r;
}

}  // namespace tutti::reference
