// SPDX-License-Identifier: MIT
// Tests batch norm within convolutions on a GPU: fused nets, with cuDNN's kernels and step by step.
#include <tutti/backends/cuda/cuda.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "backends/fused_nets.hpp"
#include "backends/need_gpu.hpp"
#include "engine/suite.hpp"

using namespace tutti;
using testing::no_gpu;

namespace {

CudaOptions options(CudaFusion fusion, bool autotune = false) {
  CudaOptions o;
  o.tf32 = false;  // the tests compare with exact products
  o.fusion = fusion;
  o.autotune = autotune;
  return o;
}

void check(CudaBackend& backend, const Graph& net, DType t) {
  const testing::Comparison r = testing::check_model(backend, net, 6, t);
  CHECK_MESSAGE(r.failures.empty(), name_of(t) << ":\n" << r.text());
  const auto [as_one, in_steps] = backend.fusions();
  MESSAGE(name_of(t) << ": " << as_one << " ops as one, " << in_steps << " step by step");
}

std::vector<double> gradients(CudaBackend& backend, const Graph& net, DType t) {
  Executor e(backend, net, {t});
  testing::randomize(e, 5);
  CHECK(std::isfinite(e.train(testing::random_batch(net, 8, 5).view(), {1, 0.125}).loss));
  return testing::fetch(
      backend, TensorRef{e.gradient_data(), DType::f32, Shape{static_cast<std::int64_t>(e.parameters().count)}});
}

}  // namespace

TEST_CASE("gpu: every op of a fused net gives the result of the reference backend") {
  if (no_gpu()) return;
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    CudaBackend backend(options(CudaFusion::on));
    check(backend, testing::bottlenecks(32, 12), t);
    CHECK(backend.fused_layers().activation.size() == testing::bottleneck_activated);
    if (t == DType::f32) CHECK(backend.fusions().first == 0);
    // Numbers of channels that do not fill whole vectors.
    check(backend, testing::bottlenecks(3, 7), t);
    check(backend, testing::small_resnet(false), t);
  }
}

TEST_CASE("gpu: chains of ops are fused by default in f16, and in bf16 if autotuning finds fusion faster") {
  if (no_gpu()) return;
  for (const auto& [type, autotune] : {std::pair{DType::f16, false}, {DType::f16, true}, {DType::bf16, true}}) {
    CudaBackend backend(options(CudaFusion::automatic, autotune));
    check(backend, testing::bottlenecks(64, 14), type);
    const int architecture = backend.device().architecture();
    const bool whole = type == DType::f16 && architecture < 100;
    CHECK(backend.fused_layers().statistics.empty() == !(whole || autotune));
    CHECK(backend.fused_layers().activation.empty() == !whole);
    CHECK(backend.fused_layers().backward.empty() == !(whole || (type == DType::f16 && autotune)));
    // cuDNN has kernels for these nets: tests/backends/test_cudnn_plans.cpp.
    if (whole && !autotune) CHECK(backend.fusions().first > 0);
  }
  CudaBackend backend(options(CudaFusion::automatic));
  check(backend, testing::bottlenecks(64, 14), DType::bf16);
  CHECK_FALSE(backend.fused_layers().any());
}

TEST_CASE("gpu: batch norm uses the implementation that autotuning finds faster") {
  if (no_gpu()) return;
  for (const DType t : {DType::f32, DType::bf16}) {
    CudaOptions o = options(CudaFusion::automatic, true);
    o.deterministic = t == DType::bf16;
    CudaBackend backend(o);
    check(backend, testing::small_resnet(false), t);
    check(backend, testing::small_resnet(true), t);
  }
}

TEST_CASE("gpu: gradients with and without fusion point in the same direction") {
  if (no_gpu()) return;
  const Graph net = testing::bottlenecks(64, 14);
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    CudaBackend off(options(CudaFusion::off)), on(options(CudaFusion::on));
    const auto a = gradients(off, net, t), b = gradients(on, net, t);
    double ab = 0, aa = 0, bb = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      ab += a[i] * b[i];
      aa += a[i] * a[i];
      bb += b[i] * b[i];
    }
    CHECK(ab / std::sqrt(aa * bb) > (t == DType::f32 ? 0.99999 : 0.99));
  }
}
