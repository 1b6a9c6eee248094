// SPDX-License-Identifier: MIT
// Winograd's convolution against sums in f64, beside plain sums in f32: every pass, f32 and bf16, each instruction set.
#include <tutti/engine/cpu/cpu.hpp>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <tutti/engine/executor.hpp>

#include "engine/suite.hpp"

using namespace tutti;
using testing::ConvCase;
using testing::Operand;
using testing::square_conv;

namespace {

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

// Of one pass: Winograd's, and that of a plain sum in f32 over the same operands.
struct Errors {
  Error winograd, direct;
};

// The layers of the ResNets that it is for, and odd ones: channels that fill no register, uneven tiles, one image.
std::vector<ConvCase> cases() {
  std::vector<ConvCase> c;
  const auto add = [&](std::int64_t rows, std::int64_t channels, std::int64_t size, std::int64_t out) {
    c.push_back(square_conv(std::to_string(channels) + "->" + std::to_string(out) + "@" + std::to_string(size), rows,
                            channels, size, out, 3, 1));
  };
  add(5, 16, 32, 16);
  add(9, 32, 16, 32);
  add(19, 64, 8, 64);
  add(3, 64, 32, 64);
  add(5, 128, 16, 128);
  add(9, 256, 8, 256);
  add(9, 512, 4, 512);
  add(1, 64, 56, 64);
  add(2, 128, 28, 128);
  add(3, 256, 14, 256);
  add(3, 512, 7, 512);
  add(3, 3, 32, 16);
  add(2, 17, 9, 24);
  add(7, 24, 5, 17);
  add(11, 64, 7, 32);
  add(1, 16, 3, 48);
  add(2, 257, 5, 272);
  c.push_back({"40->33@6x13", 4, 40, 6, 13, 33, {3, 3, 1, 1}});
  return c;
}

double at(const Operand& x, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  const Shape& s = x.shape;
  if (h < 0 || w < 0 || h >= s[2] || w >= s[3]) return 0;
  return x.data[static_cast<std::size_t>(((n * s[2] + h) * s[3] + w) * s[1] + c)];
}

// One element of a result: the products it is the sum of, handed to add(a, b).
template <class Add>
void terms_of(const op::Conv2d&, const std::vector<Operand>& in, std::int64_t n, std::int64_t c, std::int64_t h,
              std::int64_t w, Add&& add) {
  const Shape& s = in[1].shape;
  for (std::int64_t i = 0; i < s[1]; ++i)
    for (std::int64_t p = 0; p < 9; ++p)
      add(at(in[0], n, i, h + p / 3 - 1, w + p % 3 - 1), in[1].data[static_cast<std::size_t>((c * s[1] + i) * 9 + p)]);
}
template <class Add>
void terms_of(const op::Conv2dBackwardData&, const std::vector<Operand>& in, std::int64_t n, std::int64_t c,
              std::int64_t h, std::int64_t w, Add&& add) {
  const Shape& s = in[1].shape;
  for (std::int64_t o = 0; o < s[0]; ++o)
    for (std::int64_t p = 0; p < 9; ++p)
      add(at(in[0], n, o, h - p / 3 + 1, w - p % 3 + 1), in[1].data[static_cast<std::size_t>((o * s[1] + c) * 9 + p)]);
}
template <class Add>
void terms_of(const op::Conv2dBackwardWeights&, const std::vector<Operand>& in, std::int64_t o, std::int64_t c,
              std::int64_t r, std::int64_t s, Add&& add) {
  const Shape& y = in[1].shape;
  for (std::int64_t n = 0; n < y[0]; ++n)
    for (std::int64_t h = 0; h < y[2]; ++h)
      for (std::int64_t w = 0; w < y[3]; ++w) add(at(in[0], n, c, h + r - 1, w + s - 1), at(in[1], n, o, h, w));
}

class WinogradBackend final : public CpuBackend {
 public:
  explicit WinogradBackend(int threads, cpu::ConvolutionAlgorithm a = cpu::ConvolutionAlgorithm::winograd,
                           std::size_t chunk_bytes = 0)
      : CpuBackend({.threads = threads, .convolution = a}),
        chunk_bytes_(chunk_bytes > 0 ? chunk_bytes : CpuBackend::chunk_bytes()) {}
  [[nodiscard]] std::size_t chunk_bytes() const override { return chunk_bytes_; }

 private:
  std::size_t chunk_bytes_;
};

// One training step of a net around the convolution; the errors of its passes: forward, data, weights.
class TrainingStep {
 public:
  TrainingStep(const ConvCase& c, DType precision, std::unique_ptr<Backend> backend)
      : backend_(std::move(backend)),
        graph_(testing::op_case(c).graph()),
        e_(*backend_, graph_, {precision, true}),
        bf16_(precision == DType::bf16) {
    testing::randomize(e_, 7);
    const testing::Batch batch = testing::random_batch(graph_, c.rows, 7);
    e_.train(batch.view(), {1.0, 1.0 / static_cast<double>(c.rows)});
  }

  template <class O>
  [[nodiscard]] Errors errors() const {
    const Node& node = node_of<O>();
    std::vector<Operand> in;
    for (const ValueId v : node.inputs) in.push_back(operand(v));
    // A convolution in bf16 sees its weights rounded.
    if (bf16_ && !std::is_same_v<O, op::Conv2dBackwardWeights>)
      for (double& w : in[1].data) w = static_cast<double>(static_cast<float>(bf16(w)));
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
      if (bf16_ && !weights) plain = static_cast<float>(bf16(plain));
      r.winograd.add(
          weights ? out.data[static_cast<std::size_t>(((a * s[1] + b) * 3 + h) * 3 + w)] : at(out, a, b, h, w), sum);
      r.direct.add(static_cast<double>(plain), sum);
    }
    return r;
  }

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
    return {testing::fetch(e_.backend(), t), t.shape, t.dtype};
  }

  std::unique_ptr<Backend> backend_;
  Graph graph_;
  Executor e_;
  bool bf16_;
};

using Algorithm = cpu::ConvolutionAlgorithm;

TrainingStep step_of(const ConvCase& c, DType t, int threads, Algorithm a = Algorithm::winograd,
                     std::size_t chunk_bytes = 0) {
  return TrainingStep(c, t, std::make_unique<WinogradBackend>(threads, a, chunk_bytes));
}

// Those that have code of their own for this type.
std::vector<const char*> instruction_sets(DType t) {
  std::vector<const char*> r;
  const testing::IsaGuard best("");
  const cpu::Isa here = cpu::detect_isa();
  for (const cpu::Isa isa : {cpu::Isa::avx2, cpu::Isa::avx512, cpu::Isa::avx512_bf16})
    if (isa <= here && (t == DType::bf16 || isa != cpu::Isa::avx512_bf16)) r.push_back(cpu::name_of(isa).data());
  if (r.empty()) std::puts("SKIP: this processor has no AVX2");
  return r;
}

template <class O>
void check(const TrainingStep& step, const ConvCase& c, const char* isa, const char* pass, bool bf16, double most_rms) {
  const Errors e = step.errors<O>();
  std::printf("%-12s %-12s %-4s %-8s winograd %.1e (rms %.1e)  plain %.1e (rms %.1e)\n", isa, c.name.c_str(),
              bf16 ? "bf16" : "f32", pass, e.winograd.largest(), e.winograd.rms(), e.direct.largest(), e.direct.rms());
  const std::string which(isa), what(pass);
  CAPTURE(which);
  CAPTURE(c.name);
  CAPTURE(what);
  CHECK(e.winograd.rms() < most_rms);
  CHECK(e.winograd.largest() < 4 * most_rms);
}

void check_errors(DType precision) {
  const bool bf16 = precision == DType::bf16;
  for (const char* isa : instruction_sets(precision))
    for (const ConvCase& c : cases()) {
      const testing::IsaGuard guard(isa);
      const TrainingStep step = step_of(c, precision, 2);
      // Sums that are rounded to bf16 in the end are off by no more than plain ones; gradients of weights stay f32.
      check<op::Conv2d>(step, c, isa, "forward", bf16, bf16 ? 2e-3 : 2.5e-6);
      check<op::Conv2dBackwardData>(step, c, isa, "data", bf16, bf16 ? 2e-3 : 2.5e-6);
      check<op::Conv2dBackwardWeights>(step, c, isa, "weights", bf16, 2e-6);
    }
}

// Few weights and many, whose schedules differ.
std::vector<ConvCase> two_schedules() {
  return {square_conv("shallow", 21, 32, 9, 24, 3, 1), square_conv("deep", 11, 256, 6, 272, 3, 1)};
}

}  // namespace

TEST_CASE("errors against f64, f32") { check_errors(DType::f32); }
TEST_CASE("errors against f64, bf16") { check_errors(DType::bf16); }

TEST_CASE("odd convolutions: what there is no code for is computed directly") {
  for (const char* isa : instruction_sets(DType::bf16)) {
    const testing::IsaGuard guard(isa);
    WinogradBackend backend(2);
    // An element's bound follows from its own terms; the error from all of its tile, more than nine terms make up for.
    auto odd = testing::odd_conv_cases();
    std::erase_if(odd, [](const ConvCase& c) { return c.channels == 1 && c.window.kernel_h == 3; });
    testing::check_convolutions(backend, odd);
  }
}

TEST_CASE("the same bits with 1, 2, 3 and 4 threads") {
  for (const DType t : {DType::f32, DType::bf16})
    for (const char* isa : instruction_sets(t))
      for (const ConvCase& c : two_schedules()) {
        const testing::IsaGuard guard(isa);
        const TrainingStep one = step_of(c, t, 1);
        for (int threads = 2; threads <= 4; ++threads) {
          const TrainingStep more = step_of(c, t, threads);
          CHECK(one.result<op::Conv2d>() == more.result<op::Conv2d>());
          CHECK(one.result<op::Conv2dBackwardData>() == more.result<op::Conv2dBackwardData>());
          CHECK(one.result<op::Conv2dBackwardWeights>() == more.result<op::Conv2dBackwardWeights>());
        }
      }
}

TEST_CASE("outputs are the same bits whatever the rows of a chunk, and by AVX2 as by AVX-512") {
  const auto isas = instruction_sets(DType::f32);
  if (isas.empty()) return;
  for (const ConvCase& c : two_schedules()) {
    std::vector<double> first;
    for (const char* isa : isas)
      for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 30}) {
        const testing::IsaGuard guard(isa);
        const auto y = step_of(c, DType::f32, 2, Algorithm::winograd, bytes).result<op::Conv2d>();
        if (first.empty()) first = y;
        CHECK(y == first);
      }
  }
}

TEST_CASE("without AVX2 the algorithm is the direct one") {
  const testing::IsaGuard guard("baseline");
  const ConvCase c = two_schedules()[0];
  const TrainingStep direct = step_of(c, DType::f32, 2, Algorithm::direct), winograd = step_of(c, DType::f32, 2);
  CHECK(direct.result<op::Conv2d>() == winograd.result<op::Conv2d>());
  CHECK(direct.result<op::Conv2dBackwardData>() == winograd.result<op::Conv2dBackwardData>());
  CHECK(direct.result<op::Conv2dBackwardWeights>() == winograd.result<op::Conv2dBackwardWeights>());
}

TEST_CASE("whole nets: the same bits run after run and whatever the threads") {
  testing::check_determinism([](int threads) { return std::make_unique<WinogradBackend>(threads); });
}
