// SPDX-License-Identifier: MIT
// NodeChecker's checks of convolutions: all passes, and the fused ones of the CUDA backend.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/cpu/cpu_ops.hpp>

#include "engine/suite/node_checker.hpp"

namespace tutti::testing {
namespace {

// Returns the indices of the elements to check in a convolution's result: all of them if there are at most 3000,
// otherwise the first and the last 40 and 250 random ones.
std::vector<std::size_t> sample(std::size_t n, std::uint64_t seed) {
  std::vector<std::size_t> s;
  if (n <= 3000) {
    for (std::size_t i = 0; i < n; ++i) s.push_back(i);
    return s;
  }
  Rng r(seed, Purpose::user);
  for (std::size_t i = 0; i < 40; ++i) {
    s.push_back(i);
    s.push_back(n - 1 - i);
  }
  for (int i = 0; i < 250; ++i) s.push_back(r.next64() % n);
  return s;
}

double pixel(const Operand& x, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  const Shape& s = x.shape;
  if (h < 0 || w < 0 || h >= s[2] || w >= s[3]) return 0;
  return x.data[static_cast<std::size_t>(((n * s[2] + h) * s[3] + w) * s[1] + c)];
}

// Returns, for each channel, the Euclidean length of the vector of all its pixels.
std::vector<double> lengths(const Operand& x) {
  const auto channels = static_cast<std::size_t>(x.shape[1]);
  std::vector<double> r(channels);
  for (std::size_t i = 0; i < x.data.size(); ++i) r[i % channels] += x.data[i] * x.data[i];
  for (double& v : r) v = std::sqrt(v);
  return r;
}

// Returns, for each pixel, the Euclidean length of the vector of all channels of the pixels at most `reach` rows and
// columns away.
std::vector<double> lengths_around(const Operand& x, std::int64_t reach) {
  const std::int64_t channels = x.shape[1], height = x.shape[2], width = x.shape[3];
  std::vector<double> squares(x.data.size() / static_cast<std::size_t>(channels)), r;
  for (std::size_t i = 0; i < x.data.size(); ++i)
    squares[i / static_cast<std::size_t>(channels)] += x.data[i] * x.data[i];
  for (std::int64_t n = 0; n < x.shape[0]; ++n)
    for (std::int64_t h = 0; h < height; ++h)
      for (std::int64_t v = 0; v < width; ++v) {
        double sum = 0;
        for (std::int64_t i = std::max<std::int64_t>(h - reach, 0); i < std::min(h + reach + 1, height); ++i)
          for (std::int64_t j = std::max<std::int64_t>(v - reach, 0); j < std::min(v + reach + 1, width); ++j)
            sum += squares[static_cast<std::size_t>((n * height + i) * width + j)];
        r.push_back(std::sqrt(sum));
      }
  return r;
}

double weight(const Operand& w, std::int64_t o, std::int64_t i, std::int64_t r, std::int64_t s) {
  return w.data[static_cast<std::size_t>(((o * w.shape[1] + i) * w.shape[2] + r) * w.shape[3] + s)];
}

}  // namespace

template <class F>
void NodeChecker::conv(std::size_t count, double rounding, F&& terms) {
  const auto got = result(0).data;
  for (std::size_t i : sample(count, count)) {
    double sum = 0, size = 0, n = 0, slack = 0;
    terms(i, [&](double a, double b, double off = 0) {
      sum += a * b;
      size += std::fabs(a * b);
      slack += off * std::fabs(b);
      n += 1;
    });
    to_.value(label(0), i, got[i], sum, rounding * std::fabs(sum) + sums(n) * size + slack);
  }
}

void NodeChecker::check(const op::Conv2d& o) {
  round_weights();
  conv_forward(o, in_[0], nullptr, o.groups);
}

bool NodeChecker::by_winograd() const {
  const auto* const cpu = dynamic_cast<const CpuOps*>(&e_.backend());
  return cpu != nullptr && cpu->is_by_winograd(node_->op, described());
}

NodeChecker::TileErrors NodeChecker::tile_errors(const Operand& x, std::int64_t reach, bool by_outputs) const {
  TileErrors t;
  if (!by_winograd()) return t;
  t.around = lengths_around(x, reach);
  const Operand& w = in_[1];
  const auto window = static_cast<std::size_t>(w.shape[2] * w.shape[3]), inputs = static_cast<std::size_t>(w.shape[1]);
  t.weights.resize(by_outputs ? static_cast<std::size_t>(w.shape[0]) : inputs);
  for (std::size_t i = 0; i < w.data.size(); ++i)
    t.weights[by_outputs ? i / (window * inputs) : i / window % inputs] += w.data[i] * w.data[i];
  for (double& v : t.weights) v = 16 * u_ * std::sqrt(v);
  return t;
}

void NodeChecker::conv_forward(const op::Window& o, const Operand& x, const Operand* off, int groups) {
  const Operand& w = in_[1];
  const Shape ys = e_.value(node_->outputs[0]).shape;
  const TileErrors tiles = tile_errors(x, 4 * o.stride, true);
  conv(static_cast<std::size_t>(ys.numel()), u_of(0), [&](std::size_t i, auto add) {
    auto k = static_cast<std::int64_t>(i);
    const std::int64_t out = k % ys[1], q = k / ys[1] % ys[3], p = k / (ys[1] * ys[3]) % ys[2],
                       n = k / (ys[1] * ys[2] * ys[3]);
    const std::int64_t outputs = ys[1] / groups;  // of a group
    const std::int64_t first = out / outputs * w.shape[1];
    if (!tiles.weights.empty())
      add(0, 1,
          tiles.of((n * x.shape[2] + std::min(p * o.stride, x.shape[2] - 1)) * x.shape[3] +
                       std::min(q * o.stride, x.shape[3] - 1),
                   out));
    for (std::int64_t c = 0; c < w.shape[1]; ++c)
      for (int r = 0; r < o.kernel_h; ++r)
        for (int s = 0; s < o.kernel_w; ++s) {
          const std::int64_t h = p * o.stride - o.padding + r, v = q * o.stride - o.padding + s;
          add(pixel(x, n, first + c, h, v), weight(w, out, c, r, s),
              off != nullptr ? pixel(*off, n, first + c, h, v) : 0);
        }
  });
}

void NodeChecker::check(const op::Conv2dBackwardData& o) {
  round_weights();
  conv_backward_data(o, nullptr, o.groups);
}

void NodeChecker::conv_backward_data(const op::Window& o, const std::vector<char>* skip, int groups) {
  const Operand &dy = in_[0], &w = in_[1];
  const Shape xs = e_.value(node_->outputs[0]).shape;
  const TileErrors tiles = tile_errors(dy, 5, false);
  conv(static_cast<std::size_t>(xs.numel()), u_of(0), [&](std::size_t i, auto add) {
    if (skip != nullptr && (*skip)[i] != 0) return add(0, 1, std::numeric_limits<double>::infinity());
    auto k = static_cast<std::int64_t>(i);
    const std::int64_t c = k % xs[1], v = k / xs[1] % xs[3], h = k / (xs[1] * xs[3]) % xs[2],
                       n = k / (xs[1] * xs[2] * xs[3]);
    const std::int64_t outputs = dy.shape[1] / groups;  // of a group
    const std::int64_t first = groups == 1 ? 0 : c / w.shape[1] * outputs;
    if (!tiles.weights.empty())
      add(0, 1,
          tiles.of((n * dy.shape[2] + std::min(h / o.stride, dy.shape[2] - 1)) * dy.shape[3] +
                       std::min(v / o.stride, dy.shape[3] - 1),
                   c));
    for (int r = 0; r < o.kernel_h; ++r)
      for (int s = 0; s < o.kernel_w; ++s) {
        const std::int64_t p = h + o.padding - r, q = v + o.padding - s;
        if (p < 0 || q < 0 || p % o.stride != 0 || q % o.stride != 0) continue;
        for (std::int64_t out = first; out < first + outputs; ++out)
          add(pixel(dy, n, out, p / o.stride, q / o.stride), weight(w, out, groups == 1 ? c : c % w.shape[1], r, s));
      }
  });
}

void NodeChecker::check(const op::Conv2dBackwardWeights& o) { conv_backward_weights(o, in_[0], nullptr, o.groups); }

void NodeChecker::conv_backward_weights(const op::Window& o, const Operand& x, const Operand* off, int groups) {
  const Operand& dy = in_[1];
  const Shape ws = e_.value(node_->outputs[0]).shape;
  double rounding = u_of(0);
  if (e_.backend().rounds_weight_gradients()) rounding = std::max(rounding, u_out_);
  // Winograd's algorithm computes the sums for all positions of the window together. The rounding errors of one
  // position can be as large as the products of all positions. The lengths of both operands bound these products, even
  // for a position with most of its pixels outside the image.
  const bool winograd = by_winograd();
  const std::vector<double> x_length = lengths(x), dy_length = lengths(dy);
  const double pixels = static_cast<double>(dy.data.size()) / static_cast<double>(dy.shape[1]);
  conv(static_cast<std::size_t>(ws.numel()), rounding, [&](std::size_t i, auto add) {
    auto k = static_cast<std::int64_t>(i);
    const std::int64_t s = k % ws[3], r = k / ws[3] % ws[2], out = k / (ws[3] * ws[2] * ws[1]),
                       c = out / (ws[0] / groups) * ws[1] + k / (ws[3] * ws[2]) % ws[1];
    if (winograd)
      add(0, 1, sums(pixels) * x_length[static_cast<std::size_t>(c)] * dy_length[static_cast<std::size_t>(out)]);
    for (std::int64_t n = 0; n < dy.shape[0]; ++n)
      for (std::int64_t p = 0; p < dy.shape[2]; ++p)
        for (std::int64_t q = 0; q < dy.shape[3]; ++q) {
          const std::int64_t h = p * o.stride - o.padding + r, v = q * o.stride - o.padding + s;
          add(pixel(x, n, c, h, v), pixel(dy, n, out, p, q), off != nullptr ? pixel(*off, n, c, h, v) : 0);
        }
  });
}

std::pair<Operand, Operand> NodeChecker::activated() const {
  std::pair<Operand, Operand> r{in_[0], in_[0]};
  const std::size_t channels = in_[2].data.size();
  for (std::size_t i = 0; i < r.first.data.size(); ++i) {
    const double scaled = in_[0].data[i] * in_[2].data[i % channels], bias = in_[3].data[i % channels];
    r.first.data[i] = scaled + bias < 0 ? 0 : scaled + bias;
    // A library that computes in 16 bits may also round the product before it adds the bias.
    const double between = u_out_ > 0x1p-20 ? u_out_ / 2 : 4 * u_;
    r.second.data[i] = u_out_ * std::fabs(scaled + bias) + between * (std::fabs(scaled) + std::fabs(bias));
  }
  return r;
}

void NodeChecker::check(const cuda::Conv2dStatistics& o) {
  round_weights();
  if (o.activate) {
    const auto [a, off] = activated();
    conv_forward(o, a, &off);
  } else {
    conv_forward(o, in_[0], nullptr);
  }
  const auto y = result(0).data, sum = result(1).data, square_sum = result(2).data;
  const std::size_t channels = sum.size();
  std::vector<double> first(channels), size(channels), second(channels);
  for (std::size_t i = 0; i < y.size(); ++i) {
    first[i % channels] += y[i];
    size[i % channels] += std::fabs(y[i]);
    second[i % channels] += y[i] * y[i];
  }
  // The backend may have summed y before it rounded y.
  const double n = sums(static_cast<double>(y.size() / channels)) + 2 * u_master_;
  for (std::size_t c = 0; c < channels; ++c) {
    to_.value(label(1), c, sum[c], first[c], (n + u_out_) * size[c]);
    to_.value(label(2), c, square_sum[c], second[c], (n + 3 * u_out_) * second[c]);
  }
}

void NodeChecker::check(const cuda::Conv2dBackwardWeightsActivated& o) {
  const auto [a, off] = activated();
  conv_backward_weights(o, a, &off);
}

}  // namespace tutti::testing
