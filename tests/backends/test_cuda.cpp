// SPDX-License-Identifier: MIT
// The CUDA backend on a GPU: every op in every precision beside Reference.
#include <tutti/backends/cuda/cuda.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <tutti/dist/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "backend/suite.hpp"
#include "backends/need_gpu.hpp"

using namespace tutti;
using testing::no_gpu;

namespace {

CudaOptions options(bool deterministic = false, bool graph = false) {
  CudaOptions o;
  o.deterministic = deterministic;
  o.graph = graph;
  return o;
}

}  // namespace

TEST_CASE("gpu: ResNet convolutions") {
  if (no_gpu()) return;
  Cuda backend;
  testing::check_convolutions(backend, testing::resnet_conv_cases());
}
TEST_CASE("gpu: odd convolutions") {
  if (no_gpu()) return;
  Cuda backend;
  testing::check_convolutions(backend, testing::odd_conv_cases());
}
TEST_CASE("gpu: odd convolutions, deterministic") {
  if (no_gpu()) return;
  Cuda backend(options(true));
  testing::check_convolutions(backend, testing::odd_conv_cases());
}
TEST_CASE("gpu: everything but convolutions, f32") {
  if (no_gpu()) return;
  Cuda backend;
  testing::check_other_ops(backend, DType::f32);
}
TEST_CASE("gpu: everything but convolutions, bf16") {
  if (no_gpu()) return;
  Cuda backend;
  testing::check_other_ops(backend, DType::bf16);
}
TEST_CASE("gpu: everything but convolutions, f16") {
  if (no_gpu()) return;
  Cuda backend;
  testing::check_other_ops(backend, DType::f16);
}
TEST_CASE("gpu: whole nets") {
  if (no_gpu()) return;
  Cuda backend;
  testing::check_models(backend);
}
TEST_CASE("gpu: updates, norms, average, accumulation") {
  if (no_gpu()) return;
  Cuda backend;
  testing::check_updates(backend);
}
TEST_CASE("gpu: the loss, and labels that are no class") {
  if (no_gpu()) return;
  Cuda backend;
  testing::check_loss(backend);
}
TEST_CASE("gpu: NaN is not lost") {
  if (no_gpu()) return;
  Cuda backend;
  testing::check_nan_is_not_lost(backend);
}
TEST_CASE("gpu: f64 is refused when the plan is made") {
  if (no_gpu()) return;
  Cuda backend;
  testing::check_no_f64(backend);
}
TEST_CASE("gpu: the same bits in every run, where that was asked for") {
  if (no_gpu()) return;
  testing::check_determinism([](int) { return std::make_unique<Cuda>(options(true)); });
}
TEST_CASE("gpu: keep_all changes nothing but places") {
  if (no_gpu()) return;
  Cuda backend(options(true));
  testing::check_keep_all(backend);
}

TEST_CASE("gpu: captured steps compute what steps do") {
  if (no_gpu()) return;
  const Graph net = testing::small_resnet(false);
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    const auto train = [&](bool graph) {
      Cuda backend(options(true, graph));
      Solo solo;
      TrainerOptions o;
      o.compute = t;
      o.dynamic_loss_scale = t == DType::f16;
      Trainer<Cuda> trainer(backend, solo, net, o);
      std::vector<double> losses;
      for (int i = 0; i < 12; ++i) {
        const std::int64_t rows = i % 3 == 2 ? 17 : 32;
        const auto batch = testing::random_batch(net, rows, static_cast<std::uint64_t>(i % 2));
        losses.push_back(trainer.step(batch.view(), rows, 0.1 / (1 + i)).metrics.loss);
        losses.push_back(trainer.evaluate(batch.view()).loss);
      }
      auto weights =
          testing::fetch(backend, trainer.executor().parameter_data(), trainer.executor().parameters().bytes());
      return std::pair(losses, weights);
    };
    CHECK(train(false) == train(true));
  }
}

TEST_CASE("gpu: training lowers the loss in every precision") {
  if (no_gpu()) return;
  const Graph net = testing::small_resnet(false);
  const auto batch = testing::random_batch(net, 64, 5);
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    Cuda backend;
    Solo solo;
    TrainerOptions o;
    o.compute = t;
    o.dynamic_loss_scale = t == DType::f16;
    Trainer<Cuda> trainer(backend, solo, net, o);
    const double before = trainer.step(batch.view(), 64, 0.05).metrics.loss;
    double after = before;
    for (int i = 0; i < 60; ++i) after = trainer.step(batch.view(), 64, 0.05).metrics.loss;
    CHECK(after < 0.7 * before);
  }
}

TEST_CASE("gpu: memory, streams, events, pinned memory") {
  if (no_gpu()) return;
  Cuda backend;
  Buffer<Cuda> a(backend, 1000), b(backend, 1000);
  const auto pinned = cuda::allocate_pinned(1000);
  auto* const bytes = static_cast<unsigned char*>(pinned.get());
  for (int i = 0; i < 1000; ++i) bytes[i] = static_cast<unsigned char>(i);
  backend.copy_in(a.data(), bytes, 1000);
  backend.copy(b.data(), a.data(), 1000);
  std::vector<unsigned char> back(1000);
  backend.copy_out(back.data(), b.data(), 1000);
  CHECK(std::memcmp(back.data(), bytes, 1000) == 0);
  backend.zero(b.data(), 500);
  backend.copy_out(back.data(), b.data(), 1000);
  CHECK(back[499] == 0);
  CHECK(back[500] == bytes[500]);

  const cuda::Stream other(backend.device());
  cuda::Event done(backend.device(), true), later(backend.device(), true);
  done.record(backend.device().stream());
  done.hold_up(other.get());
  later.record(other.get());
  later.wait();
  CHECK(later.happened());
  CHECK(later.seconds_since(done) >= 0);
  CHECK(backend.free_bytes() > 0);
  CHECK_THROWS_WITH_AS((void)backend.allocate(std::size_t{1} << 50), doctest::Contains(" free of "), DeviceError);
  // It is no lasting error.
  backend.synchronise();
}
