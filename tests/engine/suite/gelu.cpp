// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "engine/comparison.hpp"
#include "engine/suite.hpp"

namespace tutti::testing {
namespace {

// Rows of x, x * Phi(x) and its derivative Phi(x) + x * phi(x), rounded from 30 digits. They are the exact values of
// PyTorch's nn.GELU().
constexpr std::array<std::array<double, 3>, 21> gelu_values{{
    {-9, -1.0157295653584566e-18, -9.1389373739066393e-18},
    {-6, -5.9195258702261888e-9, -3.5468709453902015e-8},
    {-4.5, -1.5289529061285272e-5, -6.8529161856344575e-5},
    {-3.25, -0.0018753313877699929, -0.0060173811438334783},
    {-2.5, -0.015524163314440338, -0.037611085908145208},
    {-2, -0.045500263896358414, -0.085231801078196897},
    {-1.5, -0.1002108019032871, -0.12746919222997953},
    {-1, -0.15865525393145705, -0.083315470587686298},
    {-0.75, -0.16997051428265115, 0.00077427826076489563},
    {-0.5, -0.15426876936299345, 0.13250487534383716},
    {-0.125, -0.056282721896235888, 0.40078206430179342},
    {0, 0.0, 0.5},
    {0.0625, 0.032807354314327951, 0.54980291007217763},
    {0.25, 0.14967658142073093, 0.69537335488363603},
    {0.5, 0.34573123063700655, 0.86749512465616284},
    {1, 0.84134474606854295, 1.0833154705876863},
    {1.75, 1.6798964754883201, 1.1109261510825781},
    {2.5, 2.4844758366855597, 1.0376110859081452},
    {3.5, 3.4991857982233757, 1.0028217603536246},
    {5, 4.9999985667421406, 1.0000071469460018},
    {7, 6.9999999999910413, 1.0000000000626632},
}};

// Runs one op with one output on vectors of T.
template <class T>
std::vector<double> run_alone(Backend& backend, DType t, const Op& o,
                              const std::vector<std::vector<double>>& operands) {
  const Shape shape{1, static_cast<std::int64_t>(operands[0].size())};
  const std::vector<TensorDesc> in(operands.size(), TensorDesc{shape, t});
  const PrepareInfo info{{in, {TensorDesc{shape, t}}, t, 1, 1}, {}, {1}, 1};
  std::vector<Held<T>> held;
  held.reserve(operands.size() + 1);
  Call c;
  for (const auto& v : operands) {
    std::vector<T> values;
    for (double d : v) values.push_back(static_cast<T>(static_cast<float>(d)));
    held.emplace_back(backend, values);
    c.in[static_cast<std::size_t>(c.inputs++)] = {held.back().data(), t, shape};
  }
  held.emplace_back(backend, std::vector<T>(operands[0].size()));
  c.out[static_cast<std::size_t>(c.outputs++)] = {held.back().data(), t, shape};
  c.count_rows = 1;
  const auto kernel = backend.kernel(o, info.desc);
  kernel->prepare(info);
  kernel->run(c);
  backend.memory().synchronise();
  const auto out = held.back().fetch();
  return std::vector<double>(out.begin(), out.end());
}

// relative: the relative error of storing a result. off: the additional absolute error of the formula.
template <class T>
void check_gelu(Backend& backend, DType t, double relative, double off) {
  CAPTURE(name_of(t));
  const double nan = std::numeric_limits<double>::quiet_NaN(), gradients[] = {1, -2.5, 0.75};
  std::vector<double> x, dy, y, dx, y_off, dx_off;
  const auto add = [&](double at, double value, double slope, double share, double least) {
    const double g = gradients[x.size() % 3];
    x.push_back(at);
    dy.push_back(g);
    y.push_back(value);
    dx.push_back(slope * g);
    y_off.push_back(share * std::fabs(value) + least);
    dx_off.push_back(share * std::fabs(slope * g) + least * std::fabs(g));
  };
  // The values are repeated so that each one occurs at every position of a vector and in the remainder.
  std::size_t period = 0;
  for (int again = 0; again < 16; ++again) {
    for (const auto& [at, value, slope] : gelu_values) add(at, value, slope, relative, off);
    for (double far : {14.5, 15.5, 40.0, 41.0, 300.0, 60000.0, std::numeric_limits<double>::infinity()}) {
      const double exact = static_cast<double>(static_cast<T>(static_cast<float>(far)));
      add(exact, exact, 1, 0, far < 20 ? 1e-40 : 0);
      add(-exact, 0, 0, 0, far < 20 ? 1e-40 : 0);
    }
    if (again == 0) period = x.size();
  }
  const auto forward = run_alone<T>(backend, t, op::Gelu{}, {x});
  const auto backward = run_alone<T>(backend, t, op::GeluBackward{}, {dy, x});
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(i);
    CAPTURE(x[i]);
    CHECK((forward[i] == y[i] || std::fabs(forward[i] - y[i]) <= y_off[i]));
    CHECK((backward[i] == dx[i] || std::fabs(backward[i] - dx[i]) <= dx_off[i]));
    if (i >= period) CHECK(forward[i] == forward[i - period]);
  }
  for (double v : run_alone<T>(backend, t, op::Gelu{}, {{nan, nan, nan}})) CHECK(std::isnan(v));
  for (double v : run_alone<T>(backend, t, op::GeluBackward{}, {{1, 0, nan, nan}, {nan, nan, 2, -50}}))
    CHECK(std::isnan(v));
}

}  // namespace

void check_gelu(Backend& backend) {
  // On a GPU the formula has an approximate quotient, which may be off by 2 units in the last place ("PTX ISA",
  // div.approx): 2.4e-7 at zero, where the slope of the formula is 1.45.
  check_gelu<float>(backend, DType::f32, 0x1p-23, backend.memory().on_host() ? 2.5e-7 : 4.5e-7);
  check_gelu<bf16>(backend, DType::bf16, 0x1p-8, 2.5e-7);
  if (backend.computes_in(DType::f16)) check_gelu<f16>(backend, DType::f16, 0x1p-10, 2.5e-7);
  if (backend.computes_in(DType::f64)) check_gelu<double>(backend, DType::f64, 1e-15, 1e-16);
}

}  // namespace tutti::testing
