// SPDX-License-Identifier: MIT
// NodeChecker's comparisons of activations and layer norm.
#include <cmath>
#include <cstddef>
#include <vector>

#include "engine/suite/node_checker.hpp"

namespace tutti::testing {

// The error of an exponential grows with its argument.
void NodeChecker::check(const op::Activation& o) {
  if (o.kind == op::ActivationKind::gelu) return compare_gelu(reference(o, in_), 0);
  const auto expected = reference(o, in_);
  const auto got = result(0).data;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double x = std::fabs(in_[0].data[i]), want = expected[0].data[i];
    to_.value(label(0), i, got[i], want, (u_out_ + u_ * (12 + 4 * x)) * std::fabs(want) + 1e-37 * (1 + x));
  }
}

void NodeChecker::check(const op::ActivationBackward& o) {
  if (o.kind == op::ActivationKind::gelu) return compare_gelu(reference(o, in_), 1);
  const auto expected = reference(o, in_);
  const auto got = result(0).data;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double x = in_[1].data[i], dy = std::fabs(in_[0].data[i]), want = expected[0].data[i];
    // The size of the summands of the slope, which may cancel.
    const double size = o.kind == op::ActivationKind::sigmoid ? std::fabs(want)
                        : o.kind == op::ActivationKind::relu6 ? std::fabs(want)
                        : o.kind == op::ActivationKind::silu  ? dy * (1 + std::fabs(x)) / (1 + std::exp(-x))
                                                              : dy;
    to_.value(label(0), i, got[i], want,
              u_out_ * std::fabs(want) + u_ * (12 + 4 * std::fabs(x)) * size + 1e-37 * (1 + std::fabs(x)));
  }
}

namespace {

// The statistics of one pixel: a bound of |xhat|'s own error in units of the sums' error, next to xhat.
struct Pixel {
  double mean = 0, inv_std = 0, size = 0;

  Pixel(const double* x, std::size_t channels, double eps) {
    double squares = 0;
    for (std::size_t c = 0; c < channels; ++c) {
      mean += x[c] / static_cast<double>(channels);
      size = std::fmax(size, std::fabs(x[c]));
    }
    for (std::size_t c = 0; c < channels; ++c) squares += (x[c] - mean) * (x[c] - mean);
    inv_std = 1 / std::sqrt(squares / static_cast<double>(channels) + eps);
    size = (size + std::fabs(mean)) * inv_std;
  }
};

}  // namespace

void NodeChecker::check(const op::LayerNorm& o) {
  const auto expected = reference(o, in_);
  const auto got = result(0).data;
  const std::size_t channels = in_[1].data.size();
  for (std::size_t i = 0; i < got.size(); i += channels) {
    const Pixel p(in_[0].data.data() + i, channels, static_cast<double>(o.eps));
    for (std::size_t c = 0; c < channels; ++c) {
      const double want = expected[0].data[i + c];
      to_.value(label(0), i + c, got[i + c], want,
                u_out_ * std::fabs(want) + sums(static_cast<double>(channels)) *
                                               (p.size * std::fabs(in_[1].data[c]) + std::fabs(in_[2].data[c])));
    }
  }
}

void NodeChecker::check(const op::LayerNormBackward& o) {
  const auto expected = reference(o, in_);
  const auto dx = result(0).data;
  const auto &dy = in_[0].data, &x = in_[1].data, &gamma = in_[2].data;
  const std::size_t channels = gamma.size();
  const auto n = static_cast<double>(channels), pixels = static_cast<double>(x.size() / channels);
  std::vector<double> gamma_tolerance(channels), beta_tolerance(channels);
  for (std::size_t i = 0; i < x.size(); i += channels) {
    const Pixel p(x.data() + i, channels, static_cast<double>(o.eps));
    const double off = sums(n) * p.size;  // of xhat
    double mean = 0, dot = 0;
    for (std::size_t c = 0; c < channels; ++c) {
      const double g = std::fabs(dy[i + c]), xhat = std::fabs(x[i + c] - p.mean) * p.inv_std;
      mean += g * std::fabs(gamma[c]) / n;
      dot += g * std::fabs(gamma[c]) * xhat / n;
      gamma_tolerance[c] += g * (sums(pixels) * xhat + off);
      beta_tolerance[c] += g * sums(pixels);
    }
    for (std::size_t c = 0; c < channels; ++c) {
      const double want = expected[0].data[i + c], g = std::fabs(dy[i + c] * gamma[c]);
      const double xhat = std::fabs(x[i + c] - p.mean) * p.inv_std;
      to_.value(label(0), i + c, dx[i + c], want,
                u_out_ * std::fabs(want) + p.inv_std * (sums(n) * (g + mean + xhat * dot) +
                                                        off * (dot + xhat * mean + std::fabs(want) / p.inv_std)));
    }
  }
  for (std::size_t k : {1U, 2U}) {
    const auto got = result(k).data;
    for (std::size_t c = 0; c < channels; ++c) {
      const double want = expected[k].data[c];
      to_.value(label(k), c, got[c], want,
                (k == 1 ? gamma_tolerance : beta_tolerance)[c] + 2 * u_master_ * std::fabs(want));
    }
  }
}

}  // namespace tutti::testing
