// SPDX-License-Identifier: MIT
// NodeChecker's comparisons of activations.
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
                        : o.kind == op::ActivationKind::silu  ? dy * (1 + std::fabs(x)) / (1 + std::exp(-x))
                                                              : dy;
    to_.value(label(0), i, got[i], want,
              u_out_ * std::fabs(want) + u_ * (12 + 4 * std::fabs(x)) * size + 1e-37 * (1 + std::fabs(x)));
  }
}

}  // namespace tutti::testing
