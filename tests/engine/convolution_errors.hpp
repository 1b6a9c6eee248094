// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/engine/executor.hpp>

#include "engine/suite.hpp"

// Runs one training step of a net with a 3x3 convolution with padding 1. Compares the results of the convolution's
// passes, and plain sums in f32, with sums in f64.
namespace tutti::testing {

struct Error {
  double most = 0, squares = 0, reference_most = 0, reference_squares = 0;

  void add(double got, double expected) {
    most = std::fmax(most, std::fabs(got - expected));
    squares += (got - expected) * (got - expected);
    reference_most = std::fmax(reference_most, std::fabs(expected));
    reference_squares += expected * expected;
  }
  [[nodiscard]] double largest() const { return most / reference_most; }
  [[nodiscard]] double rms() const { return std::sqrt(squares / reference_squares); }
};

// The errors of one pass against sums in f64: the error of the backend's kernel, and the error of a plain f32 sum of
// the same operands.
struct Errors {
  Error kernel, plain;
};

inline double at(const Operand& x, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  const Shape& s = x.shape;
  if (h < 0 || w < 0 || h >= s[2] || w >= s[3]) return 0;
  return x.data[static_cast<std::size_t>(((n * s[2] + h) * s[3] + w) * s[1] + c)];
}

// Calls add(a, b) for each product a * b in the sum that gives one element of a pass's result.
template <class Add>
void terms_of(const op::Conv2d& o, const std::vector<Operand>& in, std::int64_t n, std::int64_t c, std::int64_t h,
              std::int64_t w, Add&& add) {
  const Shape& s = in[1].shape;
  for (std::int64_t i = 0; i < s[1]; ++i)
    for (std::int64_t p = 0; p < 9; ++p)
      add(at(in[0], n, i, h * o.stride + p / 3 - 1, w * o.stride + p % 3 - 1),
          in[1].data[static_cast<std::size_t>((c * s[1] + i) * 9 + p)]);
}
template <class Add>
void terms_of(const op::Conv2dBackwardData& window, const std::vector<Operand>& in, std::int64_t n, std::int64_t c,
              std::int64_t h, std::int64_t w, Add&& add) {
  const Shape& s = in[1].shape;
  const int stride = window.stride;
  for (std::int64_t o = 0; o < s[0]; ++o)
    for (std::int64_t p = 0; p < 9; ++p)
      if (const std::int64_t y = h - p / 3 + 1, x = w - p % 3 + 1; y % stride == 0 && x % stride == 0)
        add(at(in[0], n, o, y / stride, x / stride), in[1].data[static_cast<std::size_t>((o * s[1] + c) * 9 + p)]);
}
template <class Add>
void terms_of(const op::Conv2dBackwardWeights& window, const std::vector<Operand>& in, std::int64_t o, std::int64_t c,
              std::int64_t r, std::int64_t s, Add&& add) {
  const Shape& y = in[1].shape;
  for (std::int64_t n = 0; n < y[0]; ++n)
    for (std::int64_t h = 0; h < y[2]; ++h)
      for (std::int64_t w = 0; w < y[3]; ++w)
        add(at(in[0], n, c, h * window.stride + r - 1, w * window.stride + s - 1), at(in[1], n, o, h, w));
}

// Runs one training step of a net that contains the convolution. errors() returns the errors of one of its three
// passes: forward, data gradient, weight gradient.
class TrainingStep {
 public:
  TrainingStep(const ConvCase& c, DType precision, std::unique_ptr<Backend> backend)
      : backend_(std::move(backend)),
        graph_(op_case(c).graph()),
        e_(*backend_, graph_, {precision, true}),
        bf16_(precision == DType::bf16) {
    randomize(e_, 7);
    const Batch batch = random_batch(graph_, c.rows, 7);
    e_.train(batch.view(), {1.0, 1.0 / static_cast<double>(c.rows)});
  }

  template <class O>
  [[nodiscard]] Errors errors() const {
    const Node& node = node_of<O>();
    std::vector<Operand> in;
    for (const ValueId v : node.inputs) in.push_back(operand(v));
    // In bf16, the forward and the data pass read weights rounded to bf16.
    if (bf16_ && !std::is_same_v<O, op::Conv2dBackwardWeights>)
      for (double& w : in[1].data) w = static_cast<double>(static_cast<float>(tutti::bf16(w)));
    const Operand out = operand(node.outputs[0]);
    const bool weights = std::is_same_v<O, op::Conv2dBackwardWeights>;
    const Shape s = out.shape;
    Errors r;
    Rng rng(3, Purpose::user);
    for (int k = 0; k < 400; ++k) {
      const auto below = [&](std::int64_t n) {
        return static_cast<std::int64_t>(rng.below(static_cast<std::uint32_t>(n)));
      };
      const std::int64_t a = below(s[0]), b = below(s[1]), h = below(s[2]), w = below(s[3]);
      double sum = 0;
      float plain = 0;
      terms_of(*std::get_if<O>(&node.op), in, a, b, h, w, [&](double x, double y) {
        sum += x * y;
        plain += static_cast<float>(x) * static_cast<float>(y);
      });
      if (bf16_ && !weights) plain = static_cast<float>(tutti::bf16(plain));
      r.kernel.add(weights ? out.data[static_cast<std::size_t>(((a * s[1] + b) * 3 + h) * 3 + w)] : at(out, a, b, h, w),
                   sum);
      r.plain.add(static_cast<double>(plain), sum);
    }
    return r;
  }

  [[nodiscard]] bool bf16() const { return bf16_; }
  template <class O>
  [[nodiscard]] std::vector<double> result() const {
    return operand(node_of<O>().outputs[0]).data;
  }

 private:
  template <class O>
  [[nodiscard]] const Node& node_of() const {
    for (const Node& n : e_.graph().nodes)
      if (std::holds_alternative<O>(n.op)) return n;
    FAIL("no such node");
    return e_.graph().nodes[0];
  }
  [[nodiscard]] Operand operand(ValueId v) const {
    const TensorRef t = e_.value(v);
    return {fetch(e_.backend(), t), t.shape, t.dtype};
  }

  std::unique_ptr<Backend> backend_;
  Graph graph_;
  Executor e_;
  bool bf16_;
};

template <class O>
void check_errors(const TrainingStep& step, const ConvCase& c, const char* isa, const char* pass, double most_rms) {
  const Errors e = step.errors<O>();
  std::printf("%-12s %-12s %-4s %-8s kernel %.1e (rms %.1e)  plain %.1e (rms %.1e)\n", isa, c.name.c_str(),
              step.bf16() ? "bf16" : "f32", pass, e.kernel.largest(), e.kernel.rms(), e.plain.largest(), e.plain.rms());
  const std::string which(isa), what(pass);
  CAPTURE(which);
  CAPTURE(c.name);
  CAPTURE(what);
  CHECK(e.kernel.rms() < most_rms);
  CHECK(e.kernel.largest() < 4 * most_rms);
}

}  // namespace tutti::testing
