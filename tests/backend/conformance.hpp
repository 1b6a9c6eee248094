// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backend/reference.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/train/executor.hpp>

#include "backend/comparison.hpp"

// Compares what a backend computed, node by node: each op's results with those that Reference's loops give in f64 on
// the same inputs, the ones that the backend itself made. So errors do not add up over a net, and a tolerance follows
// from the op's own sums: u_out * |result| for storing it, and u * (4 + 4 sqrt(n) + n / 8) * sum |a * b| for n
// summands: a random walk, and the drift where all terms are alike, as they are after an average pool.
namespace tutti::testing {

class NodeChecker {
 public:
  // `states`: the running statistics before the run.
  NodeChecker(const Executor& e, const Graph& g, std::vector<double> states, const StepScalars& scalars, Comparison& to)
      : e_(e), g_(g), states_(std::move(states)), scalars_(scalars), to_(to) {
    const DType t = e.compute();
    u_out_ = t == DType::bf16 ? 0x1p-8 : t == DType::f16 ? 0x1p-10 : t == DType::f32 ? 0x1p-23 : 0x1p-52;
    if (t == DType::f16) to_.floor = 0x1p-24;
    u_master_ = t == DType::f64 ? 0x1p-52 : 0x1p-23;
    u_ = t == DType::f64 ? 0x1p-53 : 0x1p-24;
  }

  void run() {
    for (const Node& n : g_.nodes) {
      node_ = &n;
      in_.clear();
      for (std::size_t k = 0; k < n.inputs.size(); ++k) in_.push_back(operand(n.inputs[k]));
      std::visit([&](const auto& o) { check(o); }, n.op);
    }
  }

 private:
  [[nodiscard]] Operand operand(ValueId v) const {
    const TensorRef t = e_.value(v);
    Operand o{fetch(e_.backend(), t), t.shape, DType::f64};
    if (t.dtype == DType::u8 || t.dtype == DType::i32) o.dtype = t.dtype;
    return o;
  }
  [[nodiscard]] Operand result(std::size_t k) const { return operand(node_->outputs[k]); }
  // The name of an output, spelled when it is blamed.
  struct Label {
    const Node& node;
    std::size_t output;
    const char* part;
    explicit operator std::string() const {
      return std::string(name_of(node.op)) + " '" + node.name + "' output " + std::to_string(output) + part;
    }
  };
  [[nodiscard]] Label label(std::size_t k, const char* part = "") const { return {*node_, k, part}; }
  // Weights as the op sees them.
  void round_weights() {
    if (e_.compute() != DType::bf16 && e_.compute() != DType::f16) return;
    for (double& w : in_[1].data)
      w = static_cast<double>(e_.compute() == DType::bf16 ? static_cast<float>(bf16(w)) : static_cast<float>(f16(w)));
  }
  [[nodiscard]] double sums(double n) const { return u_ * (4 + 4 * std::sqrt(n) + n / 8); }
  [[nodiscard]] double u_of(std::size_t k) const {
    return g_[node_->outputs[k]].precision == Precision::compute ? u_out_ : u_master_;
  }

  // Reference's loops in f64 on the given inputs.
  template <class O>
  std::vector<Operand> reference(const O& o, std::vector<Operand> in) {
    Call c;
    std::vector<std::vector<std::uint8_t>> bytes;
    std::vector<std::vector<std::int32_t>> ints;
    bytes.reserve(in.size() + node_->outputs.size());
    ints.reserve(in.size());
    c.inputs = static_cast<int>(in.size());
    for (std::size_t k = 0; k < in.size(); ++k) {
      c.in[k] = {in[k].data.data(), in[k].dtype, in[k].shape};
      if (in[k].dtype == DType::u8) {
        bytes.emplace_back(in[k].data.begin(), in[k].data.end());
        c.in[k].data = bytes.back().data();
      } else if (in[k].dtype == DType::i32) {
        ints.emplace_back(in[k].data.begin(), in[k].data.end());
        c.in[k].data = ints.back().data();
      }
    }
    std::vector<Operand> out(node_->outputs.size());
    std::vector<std::uint8_t> which;
    for (std::size_t k = 0; k < out.size(); ++k) {
      const TensorRef t = e_.value(node_->outputs[k]);
      out[k].shape = t.shape;
      out[k].data.assign(static_cast<std::size_t>(t.shape.numel()), 0.0);
      c.out[k] = {out[k].data.data(), DType::f64, t.shape};
      if (t.dtype == DType::u8) {
        which.resize(out[k].data.size());
        c.out[k].data = which.data();
        c.out[k].dtype = DType::u8;
      }
    }
    c.outputs = static_cast<int>(out.size());
    c.scalars = &scalars_;
    c.count_rows = in[0].shape[0];
    Reference().run(o, c);
    for (std::size_t k = 0; k < out.size(); ++k)
      if (c.out[k].dtype == DType::u8) out[k].data.assign(which.begin(), which.end());
    states_after_ = std::move(in);
    return out;
  }
  [[nodiscard]] std::vector<Operand> magnitudes() const {
    auto a = in_;
    for (Operand& x : a)
      for (double& v : x.data) v = std::fabs(v);
    return a;
  }

  // Ops that are linear in their inputs, with n summands.
  template <class O>
  void linear_op(const O& o, double n) {
    const auto expected = reference(o, in_), size = reference(o, magnitudes());
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const auto got = result(k).data;
      for (std::size_t i = 0; i < got.size(); ++i)
        to_.value(label(k), i, got[i], expected[k].data[i],
                  u_of(k) * std::fabs(expected[k].data[i]) + sums(n) * size[k].data[i]);
    }
  }
  // Ops that only choose among their inputs.
  template <class O>
  void exact_op(const O& o) {
    const auto expected = reference(o, in_);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const auto got = result(k).data;
      for (std::size_t i = 0; i < got.size(); ++i) to_.value(label(k), i, got[i], expected[k].data[i], 0);
    }
  }

  // y and the slope are 0 or x and 1, and a share of the normal distribution's tail, whose exponent is rounded.
  // k: which input is x.
  template <class O>
  void gelu_op(const O& o, std::size_t k) {
    const auto expected = reference(o, in_)[0].data, got = result(0).data;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double x = in_[k].data[i], a = std::fmin(std::fabs(x), 40), tail = std::erfc(a * std::sqrt(0.5)) / 2;
      const double times = k == 0 ? 1 : std::fabs(in_[0].data[i]);
      const double size = times * (k == 0 ? a * tail : tail + a * std::exp(-a * a / 2) / 2);
      to_.value(label(0), i, got[i], expected[i],
                u_out_ * std::fabs(expected[i]) + u_ * ((16 + 4 * a * a) * size + (k == 0 ? 0 : 4 * times)) + 1e-37);
    }
  }

  // A backend may add channels of zeros.
  void check(const op::Normalize& o) {
    const auto got = result(0).data;
    const auto channels = static_cast<std::size_t>(in_[0].shape[1]),
               stored = static_cast<std::size_t>(e_.value(node_->outputs[0]).shape[1]);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t c = i % stored, pixel = i / stored;
      if (c >= channels) {
        to_.value(label(0), i, got[i], 0, 0);
        continue;
      }
      const double x = in_[0].data[pixel * channels + c], mean = static_cast<double>(o.mean[c]),
                   inv_std = static_cast<double>(o.inv_std[c]), want = (x - mean) * inv_std;
      to_.value(label(0), i, got[i], want,
                u_out_ * std::fabs(want) + 4 * 0x1p-24 * (x + std::fabs(mean)) * std::fabs(inv_std));
    }
  }
  void check(const op::Relu& o) { exact_op(o); }
  void check(const op::ReluBackward& o) { exact_op(o); }
  void check(const op::Gelu& o) { gelu_op(o, 0); }
  void check(const op::GeluBackward& o) { gelu_op(o, 1); }
  void check(const op::MaxPool& o) { exact_op(o); }
  void check(const op::Add& o) { linear_op(o, 1); }
  void check(const op::Bias& o) { linear_op(o, 1); }
  void check(const op::BiasBackward& o) { linear_op(o, static_cast<double>(in_[0].shape.numel() / in_[0].shape[1])); }
  void check(const op::MaxPoolBackward& o) { linear_op(o, o.kernel_h * o.kernel_w); }
  void check(const op::GlobalAvgPool& o) { linear_op(o, static_cast<double>(in_[0].shape[2] * in_[0].shape[3])); }
  void check(const op::GlobalAvgPoolBackward& o) { linear_op(o, 1); }
  void check(const op::Linear& o) {
    round_weights();
    linear_op(o, static_cast<double>(in_[0].shape.row_numel()));
  }
  void check(const op::LinearBackwardData& o) {
    round_weights();
    linear_op(o, static_cast<double>(in_[0].shape.row_numel()));
  }
  void check(const op::LinearBackwardWeights& o) { linear_op(o, static_cast<double>(in_[0].shape[0])); }

  void check(const op::SoftmaxCrossEntropy& o) {
    const auto expected = reference(o, in_);
    const auto metrics = result(0).data;
    for (std::size_t k = 0; k < 4; ++k)
      to_.value(label(0), k, metrics[k], expected[0].data[k], 1e-6 * (1 + std::fabs(expected[0].data[k])));
    if (!o.backward) return;
    const auto got = result(1).data;
    const double scale = scalars_.loss_scale * scalars_.inv_global_batch;
    for (std::size_t i = 0; i < got.size(); ++i)
      to_.value(label(1), i, got[i], expected[1].data[i], u_out_ * std::fabs(expected[1].data[i]) + 8 * u_ * scale);
  }

  // Convolutions: element by element, all of them where there are few, else the corners and some at random.
  static std::vector<std::size_t> sample(std::size_t n, std::uint64_t seed) {
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
  // Sums a * b over the places that `terms` names, and compares; a may be off by so much already.
  template <class F>
  void conv(std::size_t count, F&& terms) {
    conv(count, u_of(0), std::forward<F>(terms));
  }
  template <class F>
  void conv(std::size_t count, double rounding, F&& terms) {
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
  static double pixel(const Operand& x, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    const Shape& s = x.shape;
    if (h < 0 || w < 0 || h >= s[2] || w >= s[3]) return 0;
    return x.data[static_cast<std::size_t>(((n * s[2] + h) * s[3] + w) * s[1] + c)];
  }
  static double weight(const Operand& w, std::int64_t o, std::int64_t i, std::int64_t r, std::int64_t s) {
    return w.data[static_cast<std::size_t>(((o * w.shape[1] + i) * w.shape[2] + r) * w.shape[3] + s)];
  }

  void check(const op::Conv2d& o) {
    round_weights();
    conv_forward(o, in_[0], nullptr);
  }
  // off: how far the input may be off, element by element; or null.
  void conv_forward(const op::Window& o, const Operand& x, const Operand* off) {
    const Operand& w = in_[1];
    const Shape ys = e_.value(node_->outputs[0]).shape;
    conv(static_cast<std::size_t>(ys.numel()), [&](std::size_t i, auto add) {
      auto k = static_cast<std::int64_t>(i);
      const std::int64_t out = k % ys[1], q = k / ys[1] % ys[3], p = k / (ys[1] * ys[3]) % ys[2],
                         n = k / (ys[1] * ys[2] * ys[3]);
      for (std::int64_t c = 0; c < w.shape[1]; ++c)
        for (int r = 0; r < o.kernel_h; ++r)
          for (int s = 0; s < o.kernel_w; ++s) {
            const std::int64_t h = p * o.stride - o.padding + r, v = q * o.stride - o.padding + s;
            add(pixel(x, n, c, h, v), weight(w, out, c, r, s), off != nullptr ? pixel(*off, n, c, h, v) : 0);
          }
    });
  }
  void check(const op::Conv2dBackwardData& o) {
    round_weights();
    conv_backward_data(o, nullptr);
  }
  // skip: elements that are not compared; or null.
  void conv_backward_data(const op::Window& o, const std::vector<char>* skip) {
    const Operand &dy = in_[0], &w = in_[1];
    const Shape xs = e_.value(node_->outputs[0]).shape;
    conv(static_cast<std::size_t>(xs.numel()), [&](std::size_t i, auto add) {
      if (skip != nullptr && (*skip)[i] != 0) return add(0, 1, std::numeric_limits<double>::infinity());
      auto k = static_cast<std::int64_t>(i);
      const std::int64_t c = k % xs[1], v = k / xs[1] % xs[3], h = k / (xs[1] * xs[3]) % xs[2],
                         n = k / (xs[1] * xs[2] * xs[3]);
      for (int r = 0; r < o.kernel_h; ++r)
        for (int s = 0; s < o.kernel_w; ++s) {
          const std::int64_t p = h + o.padding - r, q = v + o.padding - s;
          if (p < 0 || q < 0 || p % o.stride != 0 || q % o.stride != 0) continue;
          for (std::int64_t out = 0; out < dy.shape[1]; ++out)
            add(pixel(dy, n, out, p / o.stride, q / o.stride), weight(w, out, c, r, s));
        }
    });
  }
  void check(const op::Conv2dBackwardWeights& o) { conv_backward_weights(o, in_[0], nullptr); }
  void conv_backward_weights(const op::Window& o, const Operand& x, const Operand* off) {
    const Operand& dy = in_[1];
    const Shape ws = e_.value(node_->outputs[0]).shape;
    double rounding = u_of(0);
    if (e_.backend().rounds_weight_gradients()) rounding = std::max(rounding, u_out_);
    conv(static_cast<std::size_t>(ws.numel()), rounding, [&](std::size_t i, auto add) {
      auto k = static_cast<std::int64_t>(i);
      const std::int64_t s = k % ws[3], r = k / ws[3] % ws[2], c = k / (ws[3] * ws[2]) % ws[1],
                         out = k / (ws[3] * ws[2] * ws[1]);
      for (std::int64_t n = 0; n < dy.shape[0]; ++n)
        for (std::int64_t p = 0; p < dy.shape[2]; ++p)
          for (std::int64_t q = 0; q < dy.shape[3]; ++q) {
            const std::int64_t h = p * o.stride - o.padding + r, v = q * o.stride - o.padding + s;
            add(pixel(x, n, c, h, v), pixel(dy, n, out, p, q), off != nullptr ? pixel(*off, n, c, h, v) : 0);
          }
    });
  }

  // The optional ops. relu(scale * x + bias), and how far it may be off, rounded on its way into the convolution.
  [[nodiscard]] std::pair<Operand, Operand> activated() const {
    std::pair<Operand, Operand> r{in_[0], in_[0]};
    const std::size_t channels = in_[2].data.size();
    for (std::size_t i = 0; i < r.first.data.size(); ++i) {
      const double scaled = in_[0].data[i] * in_[2].data[i % channels], bias = in_[3].data[i % channels];
      r.first.data[i] = scaled + bias < 0 ? 0 : scaled + bias;
      // In 16 bits a library may round the product, too.
      const double between = u_out_ > 0x1p-20 ? u_out_ / 2 : 4 * u_;
      r.second.data[i] = u_out_ * std::fabs(scaled + bias) + between * (std::fabs(scaled) + std::fabs(bias));
    }
    return r;
  }
  void check(const op::Conv2dStatistics& o) {
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
    // The sums may be of y before it was rounded.
    const double n = sums(static_cast<double>(y.size() / channels)) + 2 * u_master_;
    for (std::size_t c = 0; c < channels; ++c) {
      to_.value(label(1), c, sum[c], first[c], (n + u_out_) * size[c]);
      to_.value(label(2), c, square_sum[c], second[c], (n + 3 * u_out_) * second[c]);
    }
  }
  void check(const op::Conv2dBackwardWeightsActivated& o) {
    const auto [a, off] = activated();
    conv_backward_weights(o, a, &off);
  }
  void check(const op::BatchNormFromSums& o) {
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
        // The bias of the scale as it came out.
        const double b = beta[c] - mean[c] * scale[c];
        to_.value(label(3), c, bias[c], b,
                  u_out_ * std::fabs(b) + 8 * u_master_ * (std::fabs(beta[c]) + std::fabs(mean[c] * scale[c])));
      }
      return;
    }
    const auto y = result(0).data;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t c = i % channels;
      const double size = std::fabs(gamma[c]) * spread[c] * (std::fabs(x[i]) + std::fabs(mean[c])) +
                          std::fabs(beta[c]) + (o.residual ? std::fabs(in_[7].data[i]) : 0);
      to_.value(label(0), i, y[i], expected[0].data[i],
                (8 * u_ + 4 * u_master_) * size + u_out_ * std::fabs(expected[0].data[i]));
    }
  }
  // Whether the relu behind gamma * (x - mean) * inv_std + beta was active: 1, 0, or 2 where rounding decides. The
  // inputs from `first` on: x, gamma, beta, mean, inv_std.
  [[nodiscard]] std::vector<char> active(std::size_t first) const {
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
  void check(const op::Conv2dBackwardDataNorm& o) {
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
      // The library may sum up what is not rounded yet.
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
      near(5, constant[c], -mean[c] * slope - s * dbeta[c] / n,
           std::fabs(mean[c] * slope) + std::fabs(s * dbeta[c] / n));
    }
  }
  void check(const op::BatchNormBackwardApply& o) {
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

  // The running statistics of before the run among a batch norm's inputs.
  void states_of_before() {
    for (std::size_t k : {3U, 4U}) {
      const Slice& s = *e_.states().find(g_[node_->inputs[k]].name);
      in_[k].data.assign(states_.begin() + static_cast<std::ptrdiff_t>(s.offset),
                         states_.begin() + static_cast<std::ptrdiff_t>(s.offset + s.count));
    }
  }

  void check(const op::BatchNorm& o) {
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
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t c = i % channels;
      const double scale = std::fabs(gamma.data[c]) * expected[2].data[c], mu = expected[1].data[c];
      const double size = scale * (std::fabs(x.data[i]) + std::fabs(mu)) + std::fabs(beta.data[c]) +
                          (o.residual ? std::fabs(in_[5].data[i]) : 0);
      to_.value(label(0), i, y[i], expected[0].data[i],
                scale * mean_tolerance[c] + scale * std::fabs(x.data[i] - mu) * relative[c] + 8 * u_ * size +
                    u_out_ * std::fabs(expected[0].data[i]));
    }
  }
  void check(const op::BatchNormInference& o) {
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
  void check(const op::BatchNormBackward& o) {
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
      // A recomputed relu may fall to the other side where its input is zero but for rounding.
      unsure[i] = o.relu && y == nullptr &&
                  std::fabs(gamma[c] * xhat + beta[c]) <= 16 * u_ * (size * scale / inv_std[c] + std::fabs(beta[c]));
      const bool active = !o.relu || unsure[i] != 0 || (y != nullptr ? (*y)[i] > 0 : gamma[c] * xhat + beta[c] > 0);
      incoming[i] = active ? g : 0;
      beta_tolerance[c] += incoming[i] * (unsure[i] != 0 ? 1 : sums(n));
      gamma_tolerance[c] +=
          incoming[i] * (unsure[i] != 0 ? std::fabs(xhat) : sums(n) * std::fabs(xhat) + 4 * u_ * size);
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
      if (o.residual)
        to_.value(label(3), i, dresidual[i], expected[3].data[i],
                  u_out_ * std::fabs(expected[3].data[i]) + 2 * u_ * incoming[i]);
    }
  }
  template <class O>
  void check(const O&) {}  // custom ops

  const Executor& e_;
  const Graph& g_;
  std::vector<double> states_;
  StepScalars scalars_;
  Comparison& to_;
  const Node* node_ = nullptr;
  std::vector<Operand> in_, states_after_;
  double u_out_ = 0, u_master_ = 0, u_ = 0;
};

// Trains one step and evaluates one batch on a model, and compares every node of both.
inline Comparison check_model(Backend& backend, const Graph& model, std::int64_t rows, DType precision,
                              std::uint64_t seed = 1) {
  Comparison r;
  Executor e(backend, model, {precision, true});
  randomize(e, seed);
  const Batch batch = random_batch(model, rows, seed);
  // In f16 small gradients need a loss scale.
  const StepScalars scalars{precision == DType::f16 ? 256.0 : 1.0, 1.0 / static_cast<double>(rows)};
  const auto states =
      fetch(backend, {e.state_data(), e.states().dtype, Shape{static_cast<std::int64_t>(e.states().count)}});
  const Metrics m = e.train(batch.view(), scalars);
  r.value("rows", 0, m.rows, static_cast<double>(rows), 0);
  NodeChecker(e, e.graph(), states, scalars, r).run();
  const Graph evaluation = inference(fuse(model));
  e.evaluate(batch.view());
  NodeChecker(e, evaluation, states, scalars, r).run();
  return r;
}

}  // namespace tutti::testing
