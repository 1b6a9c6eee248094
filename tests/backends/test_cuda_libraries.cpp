// SPDX-License-Identifier: MIT
// Compares cuDNN and cuBLAS with plain loops, and tests that plans are stored. Needs a GPU.
#include <tutti/backends/cuda/cublas/gemm.hpp>
#include <tutti/backends/cuda/cudnn/convolution.hpp>
#include <tutti/backends/cuda/cudnn/norm_fusion.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include <tutti/backends/cuda/memory.hpp>
#include <tutti/tensor/memory.hpp>

#include "backends/cuda_arrays.hpp"
#include "backends/library_cases.hpp"
#include "backends/need_gpu.hpp"
#include "data/temp_folder.hpp"

using namespace tutti;
using namespace tutti::cuda;
using namespace tutti::cuda::cases;
using testing::distance;
using testing::no_gpu;

TEST_CASE("gpu: convolutions agree with simple loops, in every type and pass") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  for (const bool deterministic : {false, true}) {
    ConvolutionOptions o = not_stored();
    o.deterministic = deterministic;
    Convolutions c(m.device(), o);
    for (const DType t : types)
      for (const auto& [kernel, stride] : {std::pair{1, 1}, {1, 2}, {3, 1}, {3, 2}, {7, 2}})
        for (const auto pass : passes) {
          const ConvProblem p = problem(t, kernel, stride);
          const Run r = operands(pass, p);
          INFO(to_string(pass) << " " << to_string(p) << (deterministic ? " deterministic" : ""));
          const double d = distance(run(m, c, pass, p, r), convolve(pass, p, r.a, r.b));
          CHECK(d < std::max(pass == ConvPass::backward_weights ? 1e-3 : 0, tolerance(t)));
        }
  }
}

TEST_CASE("gpu: TF32 is used only on request") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  const ConvProblem p = problem(DType::f32, 3, 1, 64, 64);
  const Run r = operands(ConvPass::forward, p);
  const auto want = convolve(ConvPass::forward, p, r.a, r.b);
  ConvolutionOptions o = not_stored();
  Convolutions exact(m.device(), o);
  CHECK(distance(run(m, exact, ConvPass::forward, p, r), want) < 1e-5);
  o.tf32 = true;
  Convolutions tf32(m.device(), o);
  CHECK(distance(run(m, tf32, ConvPass::forward, p, r), want) < 2e-3);
}

TEST_CASE("gpu: stored plans are reused and compute the same bits") {
  if (no_gpu()) return;
  const test::TempFolder folder;
  DeviceMemory m(0);
  ConvolutionOptions o;
  o.plan_folder = folder.path();
  o.deterministic = true;
  std::vector<Numbers> first;
  for (const bool autotune : {true, false}) {
    o.autotune = autotune;
    Convolutions c(m.device(), o);
    std::size_t i = 0;
    for (const auto pass : passes) {
      const ConvProblem p = problem(DType::bf16, 3, 1, 64, 64);
      Numbers got = run(m, c, pass, p, operands(pass, p));
      if (autotune)
        first.push_back(std::move(got));
      else
        CHECK(got == first[i++]);
    }
    // The planner without autotuning uses the stored plans that autotuning selected.
    CHECK(c.plans() == 3);
    CHECK((c.restored() >= 3) == !autotune);
  }
  // If a stored plan is damaged despite a valid checksum, the plan is made again.
  for (const auto& e : std::filesystem::directory_iterator(folder.path())) std::filesystem::resize_file(e.path(), 10);
  Convolutions c(m.device(), o);
  const ConvProblem p = problem(DType::bf16, 3, 1, 64, 64);
  CHECK_NOTHROW((void)run(m, c, ConvPass::forward, p, operands(ConvPass::forward, p)));
  CHECK(c.restored() == 0);
}

TEST_CASE("gpu: a fusion that cuDNN refuses is stored, separately for recommended and for all fusions") {
  if (no_gpu()) return;
  const test::TempFolder folder;
  DeviceMemory m(0);
  ConvolutionOptions o;
  o.plan_folder = folder.path();
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator());
  };
  // cuDNN has no fusions in f32.
  const ScaleBiasReluConvStatistics f{problem(DType::f32, 3, 1, 64, 64)};
  std::string first, second;
  Planner planner(m.device(), o);
  if (plan_fusion(planner, f, first)) return;
  CHECK_FALSE(first.empty());
  MESSAGE(first, ": ", files(), " files");
  Planner again(m.device(), o);
  CHECK_FALSE(plan_fusion(again, f, second));
  // A plan store without files has stored no refusal. A stored refusal is repeated word by word.
  if (files() > 0) CHECK(first == second);
  const BatchNormAddRelu known{{4, 64, 8, 8, DType::f16}, false, true};
  o.fallback_fusions = true;
  Planner all(m.device(), o);
  CHECK(plan_fusion(all, known, second));
}

TEST_CASE("gpu: linear layers agree with simple loops") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  Gemms gemms(m.device());
  constexpr std::array linear{LinearPass::forward, LinearPass::backward_data, LinearPass::backward_weights};
  for (const DType t : types)
    for (const bool wide : {false, true})
      for (const auto& [rows, inputs, outputs] :
           {std::array<std::int64_t, 3>{64, 512, 10}, {128, 256, 1000}, {1, 8, 8}})
        for (const auto pass : linear) {
          if (wide && (t == DType::f32 || pass != LinearPass::forward)) continue;
          const LinearProblem p{rows, inputs, outputs, t, wide};
          INFO(to_string(pass) << " " << to_string(p));
          const auto number = [](std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); };
          const Numbers x = normal(t, number(rows, inputs), 1), w = normal(t, number(outputs, inputs), 2);
          const Numbers dy = normal(t, number(rows, outputs), 3), bias = normal(DType::f32, number(outputs, 1), 4);
          const bool forward = pass == LinearPass::forward, weights = pass == LinearPass::backward_weights;
          std::vector<double> want(forward ? dy.size() : weights ? w.size() : x.size());
          std::vector<double> sums(bias.size());
          for (std::int64_t n = 0; n < rows; ++n)
            for (std::int64_t o = 0; o < outputs; ++o) {
              const std::size_t no = number(n, outputs) + static_cast<std::size_t>(o);
              sums[static_cast<std::size_t>(o)] += dy[no];
              for (std::int64_t i = 0; i < inputs; ++i) {
                const std::size_t ni = number(n, inputs) + static_cast<std::size_t>(i);
                const std::size_t oi = number(o, inputs) + static_cast<std::size_t>(i);
                if (forward) want[no] += static_cast<double>(x[ni]) * w[oi];
                if (weights) want[oi] += static_cast<double>(dy[no]) * x[ni];
                if (!forward && !weights) want[ni] += static_cast<double>(dy[no]) * w[oi];
              }
            }
          const DeviceArray a(m, t, pass == LinearPass::backward_data ? dy : x), b(m, t, weights ? dy : w);
          const DeviceArray extra(m, DType::f32, bias);
          const DeviceArray out(m, weights || wide ? DType::f32 : t, want.size());
          const Buffer workspace(m, gemms.workspace_bytes(pass, p, true) + 256);
          const bool done =
              gemms.run(pass, p, a.data(), b.data(), extra.data(), out.data(), workspace.data(), m.device().stream());
          if (forward && done)
            for (std::size_t i = 0; i < want.size(); ++i) want[i] += bias[i % bias.size()];
          if (weights && done) CHECK(distance(extra.numbers(), sums) < 1e-4);
          CHECK(distance(out.numbers(), want) < (weights || wide ? 1e-4 : tolerance(t)));
        }
}

TEST_CASE("gpu: cuDNN's fusion of scale, bias, relu, convolution and statistics agrees with simple loops") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  Planner planner(m.device(), not_stored());
  for (const DType t : {DType::f16, DType::bf16})
    for (const bool activate : {true, false}) {
      const ConvProblem p = problem(t, 3, 1, 64, 64);
      auto plan = fused(planner, ScaleBiasReluConvStatistics{p, activate}, t == DType::f16 || !activate);
      if (!plan) continue;
      INFO(plan->fusion().graph().name());
      const Run r = operands(ConvPass::forward, p);
      const Numbers scale = normal(t, 64, 5, 1, 0.2), bias = normal(t, 64, 6, 0, 0.2);
      std::vector<double> in(r.a.begin(), r.a.end());
      if (activate)
        for (std::size_t i = 0; i < in.size(); ++i) in[i] = std::max(0.0, in[i] * scale[i % 64] + bias[i % 64]);
      const auto y = convolve(ConvPass::forward, p, in, r.b);
      std::vector<double> sum(64), squares(64);
      for (std::size_t i = 0; i < y.size(); ++i) {
        sum[i % 64] += y[i];
        squares[i % 64] += y[i] * y[i];
      }
      const DeviceArray x(m, t, r.a), w(m, t, r.b), s(m, t, scale), b(m, t, bias), out(m, t, y.size());
      const DeviceArray total(m, DType::f32, 64), total_squares(m, DType::f32, 64);
      run(m, *plan, {x.data(), s.data(), b.data(), w.data(), out.data(), total.f32(), total_squares.f32()});
      CHECK(distance(out.numbers(), y) < 4 * tolerance(t));
      CHECK(distance(total.numbers(), sum) < 0.03);
      CHECK(distance(total_squares.numbers(), squares) < 0.03);
    }
}

TEST_CASE("gpu: cuDNN's fusion of scale, bias, relu and the gradient of the weights agrees with simple loops") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  Planner planner(m.device(), not_stored());
  for (const DType t : {DType::f16, DType::bf16})
    for (const DType gradient : {DType::f32, t}) {
      const ConvProblem p = problem(t, 3, 1, 64, 64);
      auto plan = fused(planner, ScaleBiasReluConvBackwardWeights{p, gradient}, t == DType::f16 && gradient == t);
      if (!plan) continue;
      INFO(plan->fusion().graph().name());
      const Run r = operands(ConvPass::backward_weights, p);
      const Numbers scale = normal(t, 64, 5, 1, 0.2), bias = normal(t, 64, 6, 0, 0.2);
      std::vector<double> in(r.a.begin(), r.a.end());
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = std::max(0.0, in[i] * scale[i % 64] + bias[i % 64]);
      const auto dw = convolve(ConvPass::backward_weights, p, in, r.b);
      const DeviceArray x(m, t, r.a), dy(m, t, r.b), s(m, t, scale), b(m, t, bias), out(m, gradient, dw.size());
      run(m, *plan, {x.data(), s.data(), b.data(), dy.data(), out.data()});
      CHECK(distance(out.numbers(), dw) < 4 * tolerance(t));
    }
}

TEST_CASE("gpu: cuDNN's fusion of batch norm, addition and relu agrees with simple loops, forward and backward") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  Planner planner(m.device(), not_stored());
  constexpr double epsilon = 1e-5;
  for (const DType t : types)
    for (const bool residual : {false, true}) {
      const NormProblem p{4, 64, 8, 8, t};
      const std::size_t n = count(p.extents());
      const Numbers x = normal(t, n, 1, 0.5, 2), add = normal(t, n, 2), dy = normal(t, n, 3);
      const Numbers scale = normal(DType::f32, 64, 4, 1, 0.2), bias = normal(DType::f32, 64, 5);
      const Norm norm = normalise(p, x, scale, bias, epsilon);
      const double rows = static_cast<double>(n) / 64;
      std::vector<double> y = norm.y, dr(n), dscale(64), dbias(64), dx(n), running_mean(64), running_variance(64);
      for (std::size_t i = 0; i < n; ++i) {
        if (residual) y[i] += add[i];
        dr[i] = y[i] > 0 ? dy[i] : 0;
        y[i] = std::max(0.0, y[i]);
        dbias[i % 64] += dr[i];
        dscale[i % 64] += dr[i] * (x[i] - norm.mean[i % 64]) * norm.inv_std[i % 64];
      }
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t c = i % 64;
        const double normal_x = (x[i] - norm.mean[c]) * norm.inv_std[c];
        dx[i] = scale[c] * norm.inv_std[c] * (dr[i] - dbias[c] / rows - normal_x * dscale[c] / rows);
      }
      for (std::size_t c = 0; c < 64; ++c) {
        running_mean[c] = 0.1 * norm.mean[c];
        running_variance[c] = 0.9 + 0.1 * norm.variance[c] * rows / (rows - 1);
      }

      const DeviceArray dev_x(m, t, x), dev_add(m, t, add), dev_dy(m, t, dy), dev_y(m, t, n);
      const DeviceArray s(m, DType::f32, scale), b(m, DType::f32, bias);
      const DeviceArray mean(m, DType::f32, floats(norm.mean)), inv_std(m, DType::f32, floats(norm.inv_std));
      const DeviceArray running_m(m, DType::f32, Numbers(64, 0)), running_v(m, DType::f32, Numbers(64, 1));
      if (auto plan = fused(planner, BatchNormAddRelu{p, residual, true}, true)) {
        INFO(plan->fusion().graph().name());
        const DeviceArray got_mean(m, DType::f32, 64), got_inv_std(m, DType::f32, 64);
        const DeviceArray rm(m, DType::f32, Numbers(64, 0)), rv(m, DType::f32, Numbers(64, 1));
        run(m, *plan,
            {dev_x.data(), s.f32(), b.f32(), dev_add.data(), rm.f32(), rv.f32(), dev_y.data(), got_mean.f32(),
             got_inv_std.f32()});
        CHECK(distance(dev_y.numbers(), y) < tolerance(t));
        CHECK(distance(got_mean.numbers(), norm.mean) < 1e-4);
        CHECK(distance(got_inv_std.numbers(), norm.inv_std) < 1e-4);
        CHECK(distance(rm.numbers(), running_mean) < 1e-4);
        CHECK(distance(rv.numbers(), running_variance) < 1e-4);
      }
      if (residual) continue;
      if (auto plan = fused(planner, BatchNormAddReluBackward{p, true}, true)) {
        INFO(plan->fusion().graph().name());
        const DeviceArray got_dx(m, t, n), ds(m, DType::f32, 64), db(m, DType::f32, 64);
        run(m, *plan,
            {dev_dy.data(), dev_x.data(), s.f32(), b.f32(), mean.f32(), inv_std.f32(), got_dx.data(), ds.f32(),
             db.f32()});
        CHECK(distance(ds.numbers(), dscale) < 0.01);
        CHECK(distance(db.numbers(), dbias) < 0.01);
        CHECK(distance(got_dx.numbers(), dx) < 2 * tolerance(t));
      }
    }
}

TEST_CASE("gpu: cuDNN's fusion of the backward pass of convolution, relu and batch norm agrees with simple loops") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  Planner planner(m.device(), not_stored());
  for (const DType t : {DType::f16, DType::bf16}) {
    const ConvProblem p = problem(t, 3, 1, 64, 64);
    auto plan = fused(planner, ConvBackwardDataReluBatchNorm{p}, t == DType::f16);
    if (!plan) continue;
    INFO(plan->fusion().graph().name());
    const NormProblem np{p.rows, 64, p.in_height, p.in_width, t};
    const std::size_t n = count(np.extents());
    const Run r = operands(ConvPass::backward_data, p);
    const Numbers x = normal(t, n, 7, 0.5, 2);
    const Numbers scale = normal(DType::f32, 64, 4, 1, 0.2), bias = normal(DType::f32, 64, 5);
    const Norm norm = normalise(np, x, scale, bias, 1e-5);
    auto dr = convolve(ConvPass::backward_data, p, r.a, r.b);
    std::vector<double> dscale(64), dbias(64), dx(n);
    for (std::size_t i = 0; i < n; ++i) {
      if (norm.y[i] <= 0) dr[i] = 0;
      dbias[i % 64] += dr[i];
      dscale[i % 64] += dr[i] * (x[i] - norm.mean[i % 64]) * norm.inv_std[i % 64];
    }
    const double rows = static_cast<double>(n) / 64;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t c = i % 64;
      const double normal_x = (x[i] - norm.mean[c]) * norm.inv_std[c];
      dx[i] = scale[c] * norm.inv_std[c] * (dr[i] - dbias[c] / rows - normal_x * dscale[c] / rows);
    }
    const DeviceArray dy(m, t, r.a), w(m, t, r.b), dev_x(m, t, x), out(m, t, n);
    const DeviceArray s(m, DType::f32, scale), b(m, DType::f32, bias);
    const DeviceArray mean(m, DType::f32, floats(norm.mean)), inv_std(m, DType::f32, floats(norm.inv_std));
    const DeviceArray ds(m, DType::f32, 64), db(m, DType::f32, 64);
    const DeviceArray fr(m, DType::f32, 64), fx(m, DType::f32, 64), fc(m, DType::f32, 64);
    run(m, *plan,
        {dy.data(), w.data(), dev_x.data(), mean.f32(), inv_std.f32(), s.f32(), b.f32(), out.data(), ds.f32(), db.f32(),
         fr.f32(), fx.f32(), fc.f32()});
    const Numbers got = out.numbers();
    CHECK(distance(got, dr) < 4 * tolerance(t));
    CHECK(distance(ds.numbers(), dscale) < 0.02);
    CHECK(distance(db.numbers(), dbias) < 0.02);
    // Computes dx from the factors.
    const Numbers from_dr = fr.numbers(), from_x = fx.numbers(), constant = fc.numbers();
    Numbers made(n);
    for (std::size_t i = 0; i < n; ++i) made[i] = from_dr[i % 64] * got[i] + from_x[i % 64] * x[i] + constant[i % 64];
    CHECK(distance(made, dx) < 4 * tolerance(t));
  }
}
