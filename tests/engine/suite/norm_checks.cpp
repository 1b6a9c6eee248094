// SPDX-License-Identifier: MIT
// NodeChecker's checks of batch norms: the whole op, and the separate steps that a GPU's library computes.
#include <cmath>
#include <cstddef>
#include <vector>

#include "engine/suite/node_checker.hpp"

namespace tutti::testing {

void NodeChecker::check(const cuda::BatchNormFromSums& o) {
  states_of_before();
  const auto expected = reference(o, in_);
  const auto &x = in_[0].data, &gamma = in_[1].data, &beta = in_[2].data;
  const std::size_t channels = gamma.size(), first = o.output ? 1 : 0;
  const auto &mean = expected[first].data, &spread = expected[first + 1].data;
  const auto near = [&](const Label& what, std::size_t c, double got, double want, double size) {
    to_.value(what, c, got, want, 4 * u_master_ * (std::fabs(want) + size));
  };
  const auto got_mean = result(first).data, got_spread = result(first + 1).data;
  const auto running_mean = fetch(e_.backend(), e_.value(node_->inputs[3])),
             running_var = fetch(e_.backend(), e_.value(node_->inputs[4]));
  for (std::size_t c = 0; c < channels; ++c) {
    near(label(first), c, got_mean[c], mean[c], 0);
    near(label(first + 1), c, got_spread[c], spread[c], 0);
    near(label(0, " running mean"), c, running_mean[c], states_after_[3].data[c], 0);
    near(label(0, " running var"), c, running_var[c], states_after_[4].data[c], 0);
  }
  if (!o.output) {
    const auto scale = result(2).data, bias = result(3).data;
    for (std::size_t c = 0; c < channels; ++c) {
      const double s = gamma[c] * spread[c];
      to_.value(label(2), c, scale[c], s, (u_out_ + 4 * u_master_) * std::fabs(s));
      // The stored bias must fit the stored scale.
      const double b = beta[c] - mean[c] * scale[c];
      to_.value(label(3), c, bias[c], b,
                u_out_ * std::fabs(b) + 8 * u_master_ * (std::fabs(beta[c]) + std::fabs(mean[c] * scale[c])));
    }
    return;
  }
  const auto y = result(0).data;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t c = i % channels;
    const double size = std::fabs(gamma[c]) * spread[c] * (std::fabs(x[i]) + std::fabs(mean[c])) + std::fabs(beta[c]) +
                        (o.residual ? std::fabs(in_[7].data[i]) : 0);
    to_.value(label(0), i, y[i], expected[0].data[i],
              (8 * u_ + 4 * u_master_) * size + u_out_ * std::fabs(expected[0].data[i]));
  }
  if (o.mask) check_mask();
}

void NodeChecker::check_mask() {
  const auto y = result(0).data, mask = result(3).data;
  for (std::size_t k = 0; k < mask.size(); ++k) {
    unsigned bits = 0;
    for (std::size_t j = 0; j < 8; ++j) bits |= (y[8 * k + j] > 0 ? 1U : 0U) << j;
    to_.value(label(3), k, mask[k], bits, 0);
  }
}

void NodeChecker::check(const cuda::BatchNormWithMask& o) {
  check(op::BatchNorm{o.eps, o.momentum, true, true});
  check_mask();
}

void NodeChecker::check(const cuda::BatchNormBackwardFromMask& o) {
  const Operand& x = in_[o.second ? 2 : 1];
  Operand y{std::vector<double>(x.data.size()), x.shape, DType::f64};
  for (std::size_t i = 0; i < y.data.size(); ++i)
    y.data[i] = static_cast<unsigned>(in_.back().data[i / 8]) >> i % 8 & 1U;
  in_.back() = y;
  check(op::BatchNormBackward{true, true, o.second});
}

void NodeChecker::check(const cuda::BatchNormOfShortcut& o) {
  written_ = false;
  check(op::BatchNorm{o.eps, o.momentum});
  written_ = true;
}

void NodeChecker::check(const cuda::BatchNormAddShortcut& o) {
  const std::vector<Operand> all = in_;
  in_[5] = reference(op::BatchNormInference{o.shortcut_eps, false, false, true},
                     {all[6], all[7], all[8], all[9], all[10]})[0];
  u_residual_ = u_out_;
  check(cuda::BatchNormWithMask{o.eps, o.momentum});
  u_residual_ = 0;
}

void NodeChecker::check(const cuda::BatchNormBackwardAddShortcut& o) {
  const std::size_t last = o.second ? 7 : 6;
  const std::vector<Operand> all = in_;
  in_.resize(last + 1);
  written_ = false;
  check(cuda::BatchNormBackwardFromMask{o.second});
  written_ = true;
  // The gradient of the shortcut's output is never in memory, but has the precision that it would have there.
  Operand g = all[0];
  for (std::size_t i = 0; i < g.data.size(); ++i) {
    const float sum = static_cast<float>(g.data[i]) + (o.second ? static_cast<float>(all[1].data[i]) : 0.0F);
    const float stored = e_.compute() == DType::bf16  ? static_cast<float>(bf16(sum))
                         : e_.compute() == DType::f16 ? static_cast<float>(f16(sum))
                                                      : sum;
    g.data[i] = (static_cast<unsigned>(all[last].data[i / 8]) >> i % 8 & 1U) != 0 ? static_cast<double>(stored) : 0;
  }
  // The node of the shortcut's norm, as it was before the two were joined.
  const Node* const adding = node_;
  Node shortcut = *adding;
  for (const Node& n : g_.nodes)
    if (op_cast<cuda::BatchNormBackwardOfShortcut>(n.op) != nullptr && n.inputs[0] == adding->outputs[3])
      shortcut.outputs = {adding->outputs[3], n.outputs[0], n.outputs[1]};
  node_ = &shortcut;
  in_ = {g, all[last + 1], all[last + 2], all[last + 2] /* not read */, all[last + 3], all[last + 4]};
  check(op::BatchNormBackward{});
  node_ = adding;
}

std::vector<char> NodeChecker::active(std::size_t first) const {
  const auto& x = in_[first].data;
  const auto of = [&](std::size_t k, std::size_t c) { return in_[first + k].data[c]; };
  const std::size_t channels = in_[first + 1].data.size();
  std::vector<char> r(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % channels;
    const double scale = of(1, c) * of(4, c), y = scale * (x[i] - of(3, c)) + of(2, c);
    const double size = std::fabs(scale) * (std::fabs(x[i]) + std::fabs(of(3, c))) + std::fabs(of(2, c));
    r[i] = static_cast<char>(std::fabs(y) <= 16 * u_ * size ? 2 : y > 0 ? 1 : 0);
  }
  return r;
}

void NodeChecker::check(const cuda::Conv2dBackwardDataNorm& o) {
  round_weights();
  const std::vector<char> on = active(2);
  std::vector<char> skip(on.size());
  for (std::size_t i = 0; i < on.size(); ++i) skip[i] = static_cast<char>(on[i] != 1);
  conv_backward_data(o, &skip);
  const auto g = result(0).data;
  const auto &x = in_[2].data, &gamma = in_[3].data, &mean = in_[5].data, &spread = in_[6].data;
  const std::size_t channels = gamma.size();
  const double n = static_cast<double>(x.size() / channels);
  std::vector<double> sum(channels), dot(channels), sum_off(channels), dot_off(channels);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % channels;
    if (on[i] == 0) continue;
    const double xhat = (x[i] - mean[c]) * spread[c], size = (std::fabs(x[i]) + std::fabs(mean[c])) * spread[c];
    // The library may sum the values before it rounds them.
    const double off = on[i] == 2 ? 1 : sums(n) + u_out_;
    if (on[i] == 1) sum[c] += g[i];
    if (on[i] == 1) dot[c] += g[i] * xhat;
    sum_off[c] += off * std::fabs(g[i]);
    dot_off[c] += std::fabs(g[i]) * (off * std::fabs(xhat) + 4 * u_ * size);
  }
  const auto dgamma = result(1).data, dbeta = result(2).data, from_g = result(3).data, from_x = result(4).data,
             constant = result(5).data;
  for (std::size_t c = 0; c < channels; ++c) {
    to_.value(label(1), c, dgamma[c], dot[c], dot_off[c] + 2 * u_master_ * std::fabs(dot[c]));
    to_.value(label(2), c, dbeta[c], sum[c], sum_off[c] + 2 * u_master_ * std::fabs(sum[c]));
    const double s = gamma[c] * spread[c], slope = -s * spread[c] * dgamma[c] / n;
    const auto near = [&](std::size_t k, double got, double want, double size) {
      to_.value(label(k), c, got, want, 16 * u_master_ * (std::fabs(want) + size));
    };
    near(3, from_g[c], s, 0);
    near(4, from_x[c], slope, 0);
    near(5, constant[c], -mean[c] * slope - s * dbeta[c] / n, std::fabs(mean[c] * slope) + std::fabs(s * dbeta[c] / n));
  }
}

void NodeChecker::check(const cuda::BatchNormBackwardApply& o) {
  const std::vector<char> on = active(1);
  const auto expected = reference(o, in_);
  const auto dx = result(0).data;
  const std::size_t channels = in_[2].data.size();
  for (std::size_t i = 0; i < dx.size(); ++i) {
    if (on[i] == 2) continue;
    const std::size_t c = i % channels;
    const double size = (on[i] == 1 ? std::fabs(in_[6].data[c] * in_[0].data[i]) : 0) +
                        std::fabs(in_[7].data[c] * in_[1].data[i]) + std::fabs(in_[8].data[c]);
    to_.value(label(0), i, dx[i], expected[0].data[i], u_out_ * std::fabs(expected[0].data[i]) + 8 * u_ * size);
  }
}

void NodeChecker::states_of_before() {
  for (std::size_t k : {3U, 4U}) {
    const Slice& s = *e_.states().find(g_[node_->inputs[k]].name);
    in_[k].data.assign(states_.begin() + static_cast<std::ptrdiff_t>(s.offset),
                       states_.begin() + static_cast<std::ptrdiff_t>(s.offset + s.count));
  }
}

void NodeChecker::check(const op::BatchNorm& o) {
  states_of_before();
  const auto pivot = in_[3].data;
  const auto expected = reference(o, in_);
  const Operand &x = in_[0], &gamma = in_[1], &beta = in_[2];
  const auto channels = static_cast<std::size_t>(x.shape[1]);
  const double n = static_cast<double>(x.data.size() / channels);
  std::vector<double> off(channels), off2(channels), mean_tolerance(channels), relative(channels);
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const double d = x.data[i] - pivot[i % channels];
    off[i % channels] += std::fabs(d) / n;
    off2[i % channels] += d * d / n;
  }
  const auto y = result(0).data, mean = result(1).data, inv_std = result(2).data;
  const auto running_mean = fetch(e_.backend(), e_.value(node_->inputs[3])),
             running_var = fetch(e_.backend(), e_.value(node_->inputs[4]));
  const double m = static_cast<double>(o.momentum);
  for (std::size_t c = 0; c < channels; ++c) {
    const double mu = expected[1].data[c], is = expected[2].data[c];
    mean_tolerance[c] = sums(n) * off[c] + 2 * u_master_ * std::fabs(mu);
    const double var_tolerance = 4 * sums(n) * off2[c];
    relative[c] = var_tolerance * is * is + 2 * u_master_;
    to_.value(label(1), c, mean[c], mu, mean_tolerance[c]);
    to_.value(label(2), c, inv_std[c], is, relative[c] * is);
    to_.value(label(0, " running mean"), c, running_mean[c], states_after_[3].data[c],
              m * mean_tolerance[c] + 2 * u_master_ * std::fabs(states_after_[3].data[c]));
    to_.value(label(0, " running var"), c, running_var[c], states_after_[4].data[c],
              2 * m * var_tolerance + 2 * u_master_ * std::fabs(states_after_[4].data[c]));
  }
  for (std::size_t i = 0; written_ && i < y.size(); ++i) {
    const std::size_t c = i % channels;
    const double scale = std::fabs(gamma.data[c]) * expected[2].data[c], mu = expected[1].data[c];
    const double size = scale * (std::fabs(x.data[i]) + std::fabs(mu)) + std::fabs(beta.data[c]) +
                        (o.residual ? std::fabs(in_[5].data[i]) : 0);
    const double off_residual = o.residual ? u_residual_ * std::fabs(in_[5].data[i]) : 0;
    to_.value(label(0), i, y[i], expected[0].data[i],
              off_residual + scale * mean_tolerance[c] + scale * std::fabs(x.data[i] - mu) * relative[c] +
                  8 * u_ * size + u_out_ * std::fabs(expected[0].data[i]));
  }
}

void NodeChecker::check(const op::BatchNormInference& o) {
  const auto expected = reference(o, in_);
  const auto y = result(0).data;
  const auto channels = static_cast<std::size_t>(in_[0].shape[1]);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t c = i % channels;
    const double scale =
        std::fabs(in_[1].data[c]) *
        (o.saved_inv_std ? in_[4].data[c] : 1 / std::sqrt(in_[4].data[c] + static_cast<double>(o.eps)));
    const double size = scale * (std::fabs(in_[0].data[i]) + std::fabs(in_[3].data[c])) + std::fabs(in_[2].data[c]) +
                        (o.residual ? std::fabs(in_[5].data[i]) : 0);
    to_.value(label(0), i, y[i], expected[0].data[i], 8 * u_ * size + u_out_ * std::fabs(expected[0].data[i]));
  }
}

void NodeChecker::check(const op::BatchNormBackward& o) {
  const auto expected = reference(o, in_);
  std::size_t k = 0;
  const auto& dy = in_[k++].data;
  const auto* dy2 = o.second ? &in_[k++].data : nullptr;
  const Operand& x = in_[k++];
  const auto &gamma = in_[k++].data, &beta = in_[k++].data, &mean = in_[k++].data, &inv_std = in_[k++].data;
  const auto* y = o.relu && o.residual ? &in_[k].data : nullptr;
  const auto channels = static_cast<std::size_t>(x.shape[1]);
  const double n = static_cast<double>(x.data.size() / channels);
  std::vector<double> beta_tolerance(channels), gamma_tolerance(channels), incoming(x.data.size());
  std::vector<char> unsure(x.data.size(), 0);
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const std::size_t c = i % channels;
    const double g = std::fabs(dy[i]) + (dy2 != nullptr ? std::fabs((*dy2)[i]) : 0);
    const double scale = std::fabs(gamma[c]) * inv_std[c], xhat = (x.data[i] - mean[c]) * inv_std[c];
    const double size = (std::fabs(x.data[i]) + std::fabs(mean[c])) * inv_std[c];
    // If the input of a recomputed relu is zero up to rounding, the backend may decide differently whether the relu is
    // active.
    unsure[i] = o.relu && y == nullptr &&
                std::fabs(gamma[c] * xhat + beta[c]) <= 16 * u_ * (size * scale / inv_std[c] + std::fabs(beta[c]));
    const bool active = !o.relu || unsure[i] != 0 || (y != nullptr ? (*y)[i] > 0 : gamma[c] * xhat + beta[c] > 0);
    incoming[i] = active ? g : 0;
    beta_tolerance[c] += incoming[i] * (unsure[i] != 0 ? 1 : sums(n));
    gamma_tolerance[c] += incoming[i] * (unsure[i] != 0 ? std::fabs(xhat) : sums(n) * std::fabs(xhat) + 4 * u_ * size);
  }
  const auto dx = result(0).data, dgamma = result(1).data, dbeta = result(2).data;
  for (std::size_t c = 0; c < channels; ++c) {
    to_.value(label(1), c, dgamma[c], expected[1].data[c],
              gamma_tolerance[c] + 2 * u_master_ * std::fabs(expected[1].data[c]));
    to_.value(label(2), c, dbeta[c], expected[2].data[c],
              beta_tolerance[c] + 2 * u_master_ * std::fabs(expected[2].data[c]));
  }
  const auto dresidual = o.residual ? result(3).data : std::vector<double>{};
  for (std::size_t i = 0; i < dx.size(); ++i) {
    if (unsure[i] != 0) continue;
    const std::size_t c = i % channels;
    const double a = std::fabs(gamma[c]) * inv_std[c];
    const double size = (std::fabs(x.data[i]) + std::fabs(mean[c])) * inv_std[c];
    const double xhat = std::fabs(x.data[i] - mean[c]) * inv_std[c];
    const double tolerance = a * ((8 * u_ + (o.residual ? u_out_ : 0)) * incoming[i] +
                                  (beta_tolerance[c] + 8 * u_ * std::fabs(expected[2].data[c])) / n +
                                  (xhat * gamma_tolerance[c] + 8 * u_ * size * std::fabs(expected[1].data[c])) / n) +
                             u_out_ * std::fabs(expected[0].data[i]);
    to_.value(label(0), i, dx[i], expected[0].data[i], tolerance);
    if (o.residual && written_)
      to_.value(label(3), i, dresidual[i], expected[3].data[i],
                u_out_ * std::fabs(expected[3].data[i]) + 2 * u_ * incoming[i]);
  }
}

}  // namespace tutti::testing
