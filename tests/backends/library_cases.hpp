// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tutti/backends/cuda/cudnn/convolution.hpp>
#include <tutti/backends/cuda/cudnn/norm_fusion.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/tensor/memory.hpp>

#include "backends/cuda_arrays.hpp"

// For the tests of cuDNN and cuBLAS on a GPU: plain loops, problems, and functions that run problems.
namespace tutti::cuda::cases {

using testing::DeviceArray;
using testing::normal;
using testing::Numbers;

inline constexpr std::array types{DType::f32, DType::bf16, DType::f16};
inline constexpr std::array passes{ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights};

// Returns the error of rounding a result, plus a margin for sums in another order.
inline double tolerance(DType t) { return t == DType::f32 ? 2e-5 : t == DType::bf16 ? 1.0 / 128 : 1.0 / 1024; }

inline std::size_t count(const cudnn::Extents& e) { return static_cast<std::size_t>(e[0] * e[1] * e[2] * e[3]); }
inline std::size_t index(const cudnn::Extents& e, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return static_cast<std::size_t>(((n * e[2] + h) * e[3] + w) * e[1] + c);
}

// Calls f(n, k, p, q, c, h, w, r, s) for every product of a convolution.
template <class F>
void each_product(const ConvProblem& p, F&& f) {
  for (std::int64_t n = 0; n < p.rows; ++n)
    for (std::int64_t oh = 0; oh < p.out_height; ++oh)
      for (std::int64_t ow = 0; ow < p.out_width; ++ow)
        for (int r = 0; r < p.kernel_h; ++r)
          for (int s = 0; s < p.kernel_w; ++s) {
            const std::int64_t h = oh * p.stride_h - p.pad_top + r, w = ow * p.stride_w - p.pad_left + s;
            if (h < 0 || h >= p.in_height || w < 0 || w >= p.in_width) continue;
            for (std::int64_t k = 0; k < p.out_channels; ++k)
              for (std::int64_t c = 0; c < p.in_channels; ++c) f(n, k, oh, ow, c, h, w, r, s);
          }
}

std::vector<double> convolve(ConvPass pass, const ConvProblem& p, const auto& a, const auto& b) {
  const auto x = cudnn::input_of(p), w = cudnn::weights_of(p), y = cudnn::output_of(p);
  std::vector<double> out(count(pass == ConvPass::forward ? y : pass == ConvPass::backward_data ? x : w));
  const auto product = [](auto u, auto v) { return static_cast<double>(u) * static_cast<double>(v); };
  each_product(p, [&](auto n, auto k, auto oh, auto ow, auto c, auto ih, auto iw, auto r, auto s) {
    const std::size_t ix = index(x, n, c, ih, iw), iwt = index(w, k, c, r, s), iy = index(y, n, k, oh, ow);
    if (pass == ConvPass::forward) out[iy] += product(a[ix], b[iwt]);
    if (pass == ConvPass::backward_data) out[ix] += product(a[iy], b[iwt]);
    if (pass == ConvPass::backward_weights) out[iwt] += product(a[ix], b[iy]);
  });
  return out;
}

struct Run {
  Numbers a, b;
  cudnn::Extents out;
};
inline Run operands(ConvPass pass, const ConvProblem& p) {
  const auto x = cudnn::input_of(p), w = cudnn::weights_of(p), y = cudnn::output_of(p);
  const auto make = [&](const cudnn::Extents& e, std::uint64_t seed) { return normal(p.type, count(e), seed); };
  if (pass == ConvPass::forward) return {make(x, 1), make(w, 2), y};
  if (pass == ConvPass::backward_data) return {make(y, 3), make(w, 2), x};
  return {make(x, 1), make(y, 3), w};
}

inline Numbers run(DeviceMemory& m, Convolutions& c, ConvPass pass, const ConvProblem& p, const Run& r) {
  const DeviceArray a(m, p.type, r.a), b(m, p.type, r.b);
  const DeviceArray out(m, p.type, count(r.out));
  const Buffer workspace(m, c.workspace_bytes(pass, p) + 256);
  c.run(pass, p, a.data(), b.data(), out.data(), workspace.data(), m.device().stream());
  return out.numbers();
}

inline ConvProblem problem(DType t, int kernel, int stride, std::int64_t in = 16, std::int64_t out = 32) {
  const int pad = kernel / 2;
  const std::int64_t size = 9, to = (size + 2 * pad - kernel) / stride + 1;
  return {2, in, size, size, out, to, to, kernel, kernel, stride, stride, pad, pad, pad, pad, t};
}

template <class F>
std::optional<FusedPlan<F>> fused(Planner& planner, const F& f, bool must = false) {
  std::string why;
  auto plan = plan_fusion(planner, f, why);
  if (!plan) MESSAGE(f.graph().name(), " is refused: ", why);
  // tests/backends/test_cudnn_plans.cpp tests which plans exist for such GPUs.
  const int architecture = planner.handle().device().architecture();
  if (must && architecture >= 80 && architecture < 100) CHECK_MESSAGE(plan, f.graph().name());
  return plan;
}
template <class F>
void run(DeviceMemory& m, FusedPlan<F>& plan, const typename F::Operands& o) {
  const Buffer workspace(m, plan.workspace_bytes() + 256);
  plan.run(o, workspace.data(), m.device().stream());
  m.synchronise();
}

inline ConvolutionOptions not_stored() {
  ConvolutionOptions o;
  o.plan_folder.clear();
  o.fallback_fusions = true;
  return o;
}

// A batch norm of a training batch, and its results.
struct Norm {
  std::vector<double> mean, variance, inv_std, y;
};
inline Norm normalise(const NormProblem& p, const Numbers& x, const Numbers& scale, const Numbers& bias,
                      double epsilon) {
  const auto channels = static_cast<std::size_t>(p.channels);
  const std::size_t n = x.size() / channels;
  Norm r{std::vector<double>(channels), std::vector<double>(channels), std::vector<double>(channels), {}};
  for (std::size_t i = 0; i < x.size(); ++i) r.mean[i % channels] += x[i] / static_cast<double>(n);
  for (std::size_t i = 0; i < x.size(); ++i)
    r.variance[i % channels] += std::pow(x[i] - r.mean[i % channels], 2) / static_cast<double>(n);
  for (std::size_t c = 0; c < channels; ++c) r.inv_std[c] = 1 / std::sqrt(r.variance[c] + epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % channels;
    r.y.push_back((x[i] - r.mean[c]) * r.inv_std[c] * scale[c] + bias[c]);
  }
  return r;
}
inline Numbers floats(const std::vector<double>& v) { return {v.begin(), v.end()}; }

}  // namespace tutti::cuda::cases
