// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <variant>
#include <vector>

#include <tutti/core/float/bf16.hpp>
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
    const double before = static_cast<double>(w[i]);
    const double grad =
        u.factor * (u.gradient_scale * static_cast<double>(g[i]) + (o.l2 ? u.weight_decay * before : 0));
    const double mi = o.beta1 * static_cast<double>(m[i]) + (1 - o.beta1) * grad;
    const double vi = o.beta2 * static_cast<double>(v[i]) + (1 - o.beta2) * grad * grad;
    m[i] = static_cast<M>(mi);
    v[i] = static_cast<M>(vi);
    const double wi = o.l2 ? before : before * (1 - u.lr * u.weight_decay);
    w[i] = static_cast<M>(wi - u.lr * (mi / c1) / (math::sqrt(vi / c2) + o.eps));
  }
}

template <class M>
void update(const LambUpdate& o, const UpdateCall& u) {
  M* w = static_cast<M*>(u.weights);
  const M* g = static_cast<const M*>(u.gradients);
  M *m = static_cast<M*>(u.slots[0]), *v = static_cast<M*>(u.slots[1]);
  const double c1 = 1 - math::pow(o.beta1, static_cast<double>(u.step)),
               c2 = 1 - math::pow(o.beta2, static_cast<double>(u.step));
  const auto direction = [&](std::size_t i) {
    return static_cast<double>(m[i]) / c1 / (math::sqrt(static_cast<double>(v[i]) / c2) + o.eps) +
           u.weight_decay * static_cast<double>(w[i]);
  };
  double weights = 0, directions = 0;
  for (std::size_t i = 0; i < u.count; ++i) {
    const double grad = u.factor * u.gradient_scale * static_cast<double>(g[i]);
    m[i] = static_cast<M>(o.beta1 * static_cast<double>(m[i]) + (1 - o.beta1) * grad);
    v[i] = static_cast<M>(o.beta2 * static_cast<double>(v[i]) + (1 - o.beta2) * grad * grad);
    weights += static_cast<double>(w[i]) * static_cast<double>(w[i]);
    directions += direction(i) * direction(i);
  }
  const double rate = u.lr * o.ratio(weights, directions, u.weight_decay);
  for (std::size_t i = 0; i < u.count; ++i) w[i] = static_cast<M>(static_cast<double>(w[i]) - rate * direction(i));
}

// to = beta * add + alpha * x y, or alpha * x y' if `transposed`; x of rows x depth. round: to bf16.
inline void multiply(std::vector<double>& to, const std::vector<double>& x, const std::vector<double>& y,
                     const std::vector<double>& add, std::size_t rows, std::size_t depth, std::size_t cols,
                     bool transposed, double alpha, double beta, bool round) {
  to.assign(rows * cols, 0.0);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < depth; ++k)
        sum += x[i * depth + k] * (transposed ? y[j * depth + k] : y[k * cols + j]);
      sum = alpha * sum + (beta != 0 ? beta * add[i * cols + j] : 0);
      to[i * cols + j] = round ? static_cast<double>(static_cast<float>(bf16(sum))) : sum;
    }
}

template <class M>
void update(const MuonUpdate& o, const UpdateCall& u) {
  if (u.rows == 0) {
    if (const auto* adam = std::get_if<AdamwUpdate>(&o.rest)) return update<M>(*adam, u);
    return update<M>(std::get<SgdUpdate>(o.rest), u);
  }
  M* w = static_cast<M*>(u.weights);
  const M* g = static_cast<const M*>(u.gradients);
  M* a = static_cast<M*>(u.slots[0]);
  const std::size_t n = u.rows * u.cols, r = std::min(u.rows, u.cols), c = std::max(u.rows, u.cols);
  const bool turned = u.rows > u.cols;
  const auto place = [&](std::size_t i) { return turned ? i % u.cols * u.rows + i / u.cols : i; };
  std::vector<double> x(n), next, gram, polynomial;
  double weights = 0, squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double grad = u.factor * u.gradient_scale * static_cast<double>(g[i]);
    const M acc = static_cast<M>(o.momentum * static_cast<double>(a[i]) + grad);
    if (!u.only_orthogonal) a[i] = acc;
    double d = o.nesterov ? grad + o.momentum * static_cast<double>(acc) : static_cast<double>(acc);
    if (o.bf16) d = static_cast<double>(static_cast<float>(bf16(d)));
    x[place(i)] = d;
    squares += d * d;
    weights += static_cast<double>(w[i]) * static_cast<double>(w[i]);
  }
  M* const other = static_cast<M*>(u.orthogonal);
  const double inverse = o.inverse_norm(squares, u.step);
  for (double& d : x) d = o.bf16 ? static_cast<double>(static_cast<float>(bf16(d * inverse))) : d * inverse;
  for (int step = 0; step < o.steps && (other == nullptr || u.only_orthogonal); ++step) {
    multiply(gram, x, x, x, r, c, r, true, 1, 0, o.bf16);
    multiply(polynomial, gram, gram, gram, r, r, r, false, o.c, o.b, o.bf16);
    multiply(next, polynomial, x, x, r, r, c, false, 1, o.a, o.bf16);
    x.swap(next);
  }
  if (u.only_orthogonal) {
    for (std::size_t i = 0; i < n; ++i) other[i] = static_cast<M>(x[place(i)]);
    return;
  }
  const auto rows = static_cast<double>(u.rows), cols = static_cast<double>(u.cols);
  const double keep = o.keep(rows, weights, u.lr, u.weight_decay, u.step),
               rate = o.rate(rows, cols, u.lr, u.weight_decay);
  for (std::size_t i = 0; i < n; ++i) {
    const M direction = other != nullptr ? other[i] : static_cast<M>(x[place(i)]);
    w[i] = static_cast<M>(static_cast<double>(w[i]) * keep - rate * static_cast<double>(direction));
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
