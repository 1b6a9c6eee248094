// SPDX-License-Identifier: MIT
#include "engine/suite/node_checker.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>

#include "engine/conformance.hpp"

namespace tutti::testing {

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
