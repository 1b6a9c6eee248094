// SPDX-License-Identifier: MIT
#include "engine/suite/node_checker.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/cpu/cpu_ops.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>

#include "engine/conformance.hpp"

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

// Returns for each pixel the sum of the lengths, over the channels, of the pixels at most `reach` rows and columns
// away.
std::vector<double> lengths_around(const Operand& x, std::int64_t reach) {
  const std::int64_t channels = x.shape[1], height = x.shape[2], width = x.shape[3];
  std::vector<double> length, sums;
  for (std::size_t i = 0; i < x.data.size(); i += static_cast<std::size_t>(channels)) {
    double squares = 0;
    for (std::int64_t c = 0; c < channels; ++c) {
      const double v = x.data[i + static_cast<std::size_t>(c)];
      squares += v * v;
    }
    length.push_back(std::sqrt(squares));
  }
  for (std::int64_t n = 0; n < x.shape[0]; ++n)
    for (std::int64_t h = 0; h < height; ++h)
      for (std::int64_t v = 0; v < width; ++v) {
        double sum = 0;
        for (std::int64_t i = std::max<std::int64_t>(h - reach, 0); i < std::min(h + reach + 1, height); ++i)
          for (std::int64_t j = std::max<std::int64_t>(v - reach, 0); j < std::min(v + reach + 1, width); ++j)
            sum += length[static_cast<std::size_t>((n * height + i) * width + j)];
        sums.push_back(sum);
      }
  return sums;
}

double weight(const Operand& w, std::int64_t o, std::int64_t i, std::int64_t r, std::int64_t s) {
  return w.data[static_cast<std::size_t>(((o * w.shape[1] + i) * w.shape[2] + r) * w.shape[3] + s)];
}

}  // namespace

NodeChecker::NodeChecker(const Executor& e, const Graph& g, std::vector<double> states, const StepScalars& scalars,
                         Comparison& to)
    : e_(e), g_(g), states_(std::move(states)), scalars_(scalars), to_(to) {
  const DType t = e.compute();
  u_out_ = t == DType::bf16 ? 0x1p-8 : t == DType::f16 ? 0x1p-10 : t == DType::f32 ? 0x1p-23 : 0x1p-52;
  if (t == DType::f16) to_.floor = 0x1p-24;
  u_master_ = t == DType::f64 ? 0x1p-52 : 0x1p-23;
  u_ = t == DType::f64 ? 0x1p-53 : 0x1p-24;
}

NodeChecker::Label::operator std::string() const {
  return std::string(name_of(node.op)) + " '" + node.name + "' output " + std::to_string(output) + part;
}

double NodeChecker::u_of(std::size_t k) const {
  return g_[node_->outputs[k]].precision == Precision::compute ? u_out_ : u_master_;
}

std::vector<Operand> NodeChecker::run_reference(std::vector<Operand> in, FunctionRef<void(Call&)> run) {
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
  run(c);
  for (std::size_t k = 0; k < out.size(); ++k)
    if (c.out[k].dtype == DType::u8) out[k].data.assign(which.begin(), which.end());
  states_after_ = std::move(in);
  return out;
}

void NodeChecker::compare_linear(const std::vector<Operand>& expected, const std::vector<Operand>& size, double n) {
  for (std::size_t k = 0; k < expected.size(); ++k) {
    const auto got = result(k).data;
    for (std::size_t i = 0; i < got.size(); ++i)
      to_.value(label(k), i, got[i], expected[k].data[i],
                u_of(k) * std::fabs(expected[k].data[i]) + sums(n) * size[k].data[i]);
  }
}

void NodeChecker::compare_exact(const std::vector<Operand>& expected) {
  for (std::size_t k = 0; k < expected.size(); ++k) {
    const auto got = result(k).data;
    for (std::size_t i = 0; i < got.size(); ++i) to_.value(label(k), i, got[i], expected[k].data[i], 0);
  }
}

void NodeChecker::compare_gelu(const std::vector<Operand>& expected, std::size_t k) {
  const auto got = result(0).data;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double x = in_[k].data[i], a = std::fmin(std::fabs(x), 40), tail = std::erfc(a * std::sqrt(0.5)) / 2;
    const double times = k == 0 ? 1 : std::fabs(in_[0].data[i]);
    const double size = times * (k == 0 ? a * tail : tail + a * std::exp(-a * a / 2) / 2);
    to_.value(
        label(0), i, got[i], expected[0].data[i],
        u_out_ * std::fabs(expected[0].data[i]) + u_ * ((16 + 4 * a * a) * size + (k == 0 ? 0 : 4 * times)) + 1e-37);
  }
}

void NodeChecker::run() {
  for (const Node& n : g_.nodes) {
    node_ = &n;
    in_.clear();
    for (std::size_t k = 0; k < n.inputs.size(); ++k) in_.push_back(operand(n.inputs[k]));
    std::visit([&](const auto& o) { check(o); }, n.op);
  }
}

Operand NodeChecker::operand(ValueId v) const {
  const TensorRef t = e_.value(v);
  Operand o{fetch(e_.backend(), t), t.shape, DType::f64};
  if (t.dtype == DType::u8 || t.dtype == DType::i32) o.dtype = t.dtype;
  return o;
}

NodeDesc NodeChecker::described() const {
  NodeDesc d;
  for (const auto& [list, to] : {std::pair{&node_->inputs, &d.in}, std::pair{&node_->outputs, &d.out}})
    for (const ValueId v : *list) {
      const TensorRef t = e_.value(v);
      to->push_back({t.shape, t.dtype});
    }
  d.compute = e_.compute();
  d.rows = d.in[0].shape[0];
  d.shards = e_.backend().shards();
  return d;
}

void NodeChecker::round_weights() {
  if (e_.compute() != DType::bf16 && e_.compute() != DType::f16) return;
  for (double& w : in_[1].data)
    w = static_cast<double>(e_.compute() == DType::bf16 ? static_cast<float>(bf16(w)) : static_cast<float>(f16(w)));
}

std::vector<Operand> NodeChecker::magnitudes() const {
  auto a = in_;
  for (Operand& x : a)
    for (double& v : x.data) v = std::fabs(v);
  return a;
}

// A backend may append channels that contain only zeros.
void NodeChecker::check(const op::Normalize& o) {
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

void NodeChecker::check(const op::SoftmaxCrossEntropy& o) {
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

NodeChecker::TileErrors NodeChecker::tile_errors(const Operand& x, std::int64_t reach, bool by_outputs) const {
  TileErrors t;
  const auto* const cpu = dynamic_cast<const CpuOps*>(&e_.backend());
  if (cpu == nullptr || !cpu->is_by_winograd(node_->op, described())) return t;
  t.around = lengths_around(x, reach);
  const Operand& w = in_[1];
  const auto taps = static_cast<std::size_t>(w.shape[1] * w.shape[2] * w.shape[3]);
  t.weights.resize(static_cast<std::size_t>(by_outputs ? w.shape[0] : w.shape[1]));
  for (std::size_t i = 0; i < w.data.size(); ++i)
    t.weights[by_outputs ? i / taps : i % taps / static_cast<std::size_t>(w.shape[2] * w.shape[3])] +=
        w.data[i] * w.data[i];
  for (double& v : t.weights) v = sums(static_cast<double>(9 * x.shape[1])) * std::sqrt(v);
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
  const auto* const cpu = dynamic_cast<const CpuOps*>(&e_.backend());
  const bool winograd = cpu != nullptr && cpu->is_by_winograd(node_->op, described());
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

void NodeChecker::check(const op::Private&) {
  const auto one = [&](const auto* o) {
    if (o != nullptr) check(*o);
    return o != nullptr;
  };
  const Op& op = node_->op;
  const bool known =
      one(op_cast<cuda::Conv2dStatistics>(op)) || one(op_cast<cuda::Conv2dBackwardWeightsActivated>(op)) ||
      one(op_cast<cuda::BatchNormFromSums>(op)) || one(op_cast<cuda::Conv2dBackwardDataNorm>(op)) ||
      one(op_cast<cuda::BatchNormBackwardApply>(op)) || one(op_cast<cuda::BatchNormWithMask>(op)) ||
      one(op_cast<cuda::BatchNormBackwardFromMask>(op)) || one(op_cast<cuda::BatchNormOfShortcut>(op)) ||
      one(op_cast<cuda::BatchNormAddShortcut>(op)) || one(op_cast<cuda::BatchNormBackwardAddShortcut>(op)) ||
      one(op_cast<cuda::BatchNormBackwardOfShortcut>(op));
  if (!known) fail("NodeChecker", "an op that it knows", std::string(name_of(op)));
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

Comparison check_model(Backend& backend, const Graph& model, std::int64_t rows, DType precision, std::uint64_t seed) {
  Comparison r;
  Executor e(backend, model, {precision, true});
  randomize(e, seed);
  const Batch batch = random_batch(model, rows, seed);
  // In f16, small gradients need a loss scale.
  const StepScalars scalars{precision == DType::f16 ? 256.0 : 1.0, 1.0 / static_cast<double>(rows)};
  const auto states =
      fetch(backend, {e.state_data(), e.states().dtype, Shape{static_cast<std::int64_t>(e.states().count)}});
  const Metrics m = e.train(batch.view(), scalars);
  r.value("rows", 0, m.rows, static_cast<double>(rows), 0);
  NodeChecker(e, e.graph(), states, scalars, r).run();
  const Graph evaluation = inference(fuse(model));
  e.evaluate(batch.evaluation());
  NodeChecker(e, evaluation, states, scalars, r).run();
  return r;
}

}  // namespace tutti::testing
