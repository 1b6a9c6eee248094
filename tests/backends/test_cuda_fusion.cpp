// SPDX-License-Identifier: MIT
// Tests batch norm within convolutions on the CUDA backend: fused nets on an emulated GPU (cuda_emulator.hpp), with a
// library that fuses or refuses as the test requests.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <cmath>
#include <cstdint>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/emulated_cuda.hpp"
#include "backends/fused_nets.hpp"
#include "backends/fusing_convolutions.hpp"
#include "engine/suite.hpp"

using namespace tutti;
using cuda::FusedPass;
using testing::FusingConvolutions;
using testing::no_emulator;

namespace {

using Fusing = cuda::BasicCudaBackend<FusingConvolutions, testing::LoopGemms>;

CudaOptions options(CudaFusion fusion, bool graph = false, bool autotune = false) {
  CudaOptions o = testing::emulated_options(graph);
  o.fusion = fusion;
  o.autotune = autotune;  // not for a limited time
  return o;
}

using testing::bottlenecks;
constexpr int convolutions = testing::bottleneck_convolutions, activated = testing::bottleneck_activated;

struct Result {
  double loss = 0, evaluated = 0;
  std::vector<double> gradients;
};
template <class B>
Result train(B& backend, const Graph& net, DType t, int steps = 1) {
  Executor e(backend, net, {t});
  testing::randomize(e, 5);
  const auto batch = testing::random_batch(net, 4, 5);
  Result r;
  for (int i = 0; i < steps; ++i) r.loss = e.train(batch.view(), {1, 0.25}).loss;
  r.gradients = testing::fetch(
      backend, TensorRef{e.gradient_data(), DType::f32, Shape{static_cast<std::int64_t>(e.parameters().count)}});
  r.evaluated = e.evaluate(batch.view()).loss;
  return r;
}
double difference(const Result& a, const Result& b) {
  REQUIRE(a.gradients.size() == b.gradients.size());
  double off = 0, size = 0;
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    off += std::pow(a.gradients[i] - b.gradients[i], 2);
    size += std::pow(b.gradients[i], 2);
  }
  return std::sqrt(off / size);
}

void check_every_op(Fusing& backend, const Graph& net, DType t) {
  const testing::Comparison r = testing::check_model(backend, net, 5, t);
  CHECK_MESSAGE(r.failures.empty(), name_of(t) << ":\n" << r.text());
  CHECK(r.compared > 1000);
}

}  // namespace

TEST_CASE("every op of a fused net gives the result of the reference backend, fused and as separate ops") {
  if (no_emulator()) return;
  for (const bool refuse : {false, true})
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      FusingConvolutions::reset();
      if (refuse)
        for (int i = 0; i < 4; ++i) FusingConvolutions::refused.insert(static_cast<FusedPass>(i));
      Fusing backend(options(CudaFusion::on));
      check_every_op(backend, bottlenecks(), t);
      CHECK(backend.fused_layers().statistics.size() == convolutions);
      CHECK(backend.fused_layers().activation.size() == activated);
      CHECK(backend.fused_layers().backward.size() == activated);
      for (int i = 0; i < 4; ++i) CHECK((FusingConvolutions::started[static_cast<FusedPass>(i)] == 0) == refuse);
    }
}

TEST_CASE("if the number of channels is not a multiple of the vector width, ops run separately, except after images") {
  if (no_emulator()) return;
  for (const DType t : {DType::f32, DType::bf16}) {
    FusingConvolutions::reset();
    Fusing backend(options(CudaFusion::on));
    check_every_op(backend, bottlenecks(3, 5), t);
    CHECK(backend.fused_layers().activation.size() == activated);
    CHECK(FusingConvolutions::asked.empty());
    FusingConvolutions::reset();
    (void)train(backend, bottlenecks(), t);
    // The backend pads the stem's three channels before it fuses.
    CHECK(FusingConvolutions::started[FusedPass::statistics] == convolutions - activated);
  }
}

TEST_CASE("if cuDNN refuses one kind of fusion, its ops run separately with the same result") {
  if (no_emulator()) return;
  const Graph net = bottlenecks();
  Fusing unfused(options(CudaFusion::off));
  const Result exact = train(unfused, net, DType::f32);
  for (const DType t : {DType::f32, DType::bf16}) {
    FusingConvolutions::reset();
    Fusing off(options(CudaFusion::off));
    const Result plain = train(off, net, t);
    CHECK_FALSE(off.fused_layers().any());
    CHECK(FusingConvolutions::asked.empty());
    Fusing all(options(CudaFusion::on));
    const Result fused = train(all, net, t);
    CHECK(FusingConvolutions::started[FusedPass::statistics] == convolutions - activated);
    CHECK(FusingConvolutions::started[FusedPass::activated_statistics] == activated);
    CHECK(FusingConvolutions::started[FusedPass::activated_backward_weights] == activated);
    CHECK(FusingConvolutions::started[FusedPass::backward_data_norm] == activated);
    CHECK(fused.loss == doctest::Approx(plain.loss).epsilon(t == DType::f32 ? 1e-5 : 0.02));
    CHECK(fused.evaluated == doctest::Approx(plain.evaluated).epsilon(t == DType::f32 ? 1e-5 : 0.02));
    // A fused net rounds at other places than a net that is not fused. Its error must not be larger.
    CHECK(difference(fused, exact) < 1e-4 + 1.5 * difference(plain, exact));
    for (int i = 0; i < 4; ++i) {
      FusingConvolutions::reset();
      FusingConvolutions::refused.insert(static_cast<FusedPass>(i));
      Fusing some(options(CudaFusion::on));
      const Result got = train(some, net, t);
      INFO(cuda::to_string(static_cast<FusedPass>(i)));
      CHECK(FusingConvolutions::started.count(static_cast<FusedPass>(i)) == 0);
      CHECK(FusingConvolutions::started.size() == 3);
      CHECK(got.loss == doctest::Approx(fused.loss).epsilon(t == DType::f32 ? 1e-5 : 0.01));
      CHECK(difference(got, fused) < (t == DType::f32 ? 1e-4 : 0.05));
    }
  }
}

TEST_CASE("automatic fusion selects chains of ops by type and GPU") {
  if (no_emulator()) return;
  const Graph net = bottlenecks();
  const auto fused = [&](DType t, CudaOptions o) {
    FusingConvolutions::reset();
    Fusing backend(std::move(o));
    const Executor e(backend, net, {t});
    return backend.fused_layers();
  };
  cuda::FusedLayers l = fused(DType::f32, options(CudaFusion::automatic));
  CHECK_FALSE(l.any());
  l = fused(DType::f16, options(CudaFusion::automatic));
  CHECK(l.statistics.size() == convolutions);
  CHECK(l.activation.size() == activated);
  CHECK(l.backward.size() == activated);
  l = fused(DType::f16, options(CudaFusion::automatic, false, true));
  CHECK(l.backward.size() == activated);
  // In bf16 cuDNN can fuse only the statistics, and only a measurement may select that fusion.
  CHECK_FALSE(fused(DType::bf16, options(CudaFusion::automatic)).any());
  l = fused(DType::bf16, options(CudaFusion::automatic, false, true));
  CHECK(l.statistics.size() == convolutions);
  CHECK(l.activation.empty());
  CHECK(l.backward.empty());
  CHECK_FALSE(fused(DType::f32, options(CudaFusion::automatic, false, true)).any());
  CHECK_FALSE(fused(DType::f16, options(CudaFusion::off, false, true)).any());
  // For compute capability 10 cuDNN fuses no activations, and a measurement must select the other fusions.
  auto& device = emulator::Device::instance();
  device.major = 10;
  CHECK_FALSE(fused(DType::f16, options(CudaFusion::automatic)).any());
  l = fused(DType::f16, options(CudaFusion::automatic, false, true));
  CHECK(l.statistics.size() == convolutions);
  CHECK(l.activation.empty());
  CHECK(l.backward.size() == activated);
  device.major = 8;
  CHECK(fused(DType::f16, options(CudaFusion::automatic)).any());
  device.major = 9;
  // If the library cannot fuse, chains are fused only if the option forces it.
  testing::Emulated without(options(CudaFusion::automatic));
  const Executor e(without, net, {DType::bf16});
  CHECK_FALSE(without.fused_layers().any());
  testing::Emulated steps(options(CudaFusion::on)), off(options(CudaFusion::off));
  CHECK(difference(train(steps, net, DType::f32), train(off, net, DType::f32)) < 1e-4);
  CHECK(steps.fused_layers().any());
  CHECK(parse_cuda_fusion("auto") == CudaFusion::automatic);
  CHECK(parse_cuda_fusion("on") == CudaFusion::on);
  CHECK(parse_cuda_fusion("off") == CudaFusion::off);
  CHECK_THROWS_WITH_AS((void)parse_cuda_fusion("yes"), doctest::Contains("auto, on or off, got 'yes'"), UsageError);
}

TEST_CASE("with --recompute activations are computed again instead of kept, with less memory and the same bits") {
  if (no_emulator()) return;
  Builder b(3, 24, 24);
  models::resnet_cifar(b, b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F}), {.depth = 14, .width = 8});
  const Graph net = std::move(b).take();
  const auto run = [&](bool recompute) {
    CudaOptions o = options(CudaFusion::off);
    o.recompute = recompute;
    Fusing backend(o);
    CHECK(backend.memory_hint() == (recompute ? "" : "--recompute"));
    Executor e(backend, net, {DType::bf16});
    e.prepare(4, true);
    return std::pair{e.memory().activations, train(backend, net, DType::bf16).gradients};
  };
  const auto kept = run(false), again = run(true);
  CHECK(again.first < kept.first);
  CHECK(again.second == kept.second);
}

TEST_CASE("autotuning selects the faster implementation, and its trials free their memory") {
  if (no_emulator()) return;
  const Graph net = bottlenecks();
  auto& device = emulator::Device::instance();
  FusingConvolutions::reset();
  Fusing fast(options(CudaFusion::automatic, false, true));
  const Result fused = train(fast, net, DType::f16);
  CHECK(FusingConvolutions::trials == convolutions + 2 * activated + 1);  // plus one for a backward batch norm
  FusingConvolutions::reset();
  FusingConvolutions::fused_is_faster = false;
  Fusing slow(options(CudaFusion::automatic, false, true));
  const std::size_t before = device.memory.used();
  {
    Executor e(slow, net, {DType::f16});
    testing::randomize(e, 5);
    e.prepare(4, true);
    const auto trials = FusingConvolutions::started;
    e.train(testing::random_batch(net, 4, 5).view(), {1, 0.25});
    CHECK(FusingConvolutions::started == trials);  // the step starts no further trials
  }
  // The workspace stays allocated. The memory of the trials is free.
  CHECK(device.memory.used() - before < std::size_t{4} << 20);
  CHECK(difference(train(slow, net, DType::f16), fused) < 0.05);
}

TEST_CASE("batch norm uses the library if autotuning finds the library faster, otherwise tutti's kernels") {
  if (no_emulator()) return;
  for (const DType t : {DType::f32, DType::bf16}) {
    // In 16 bits, batch norms that follow a convolution are fused. In this net some batch norms follow a sum.
    Builder b(3, 8, 8);
    models::resnet_cifar(b, b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F}),
                         {.depth = 8, .width = 8, .preactivation = true});
    const Graph net = t == DType::f32 ? bottlenecks() : std::move(b).take();
    FusingConvolutions::reset();
    CudaOptions o = options(CudaFusion::automatic, false, true);
    Fusing ours(o);
    check_every_op(ours, net, t);
    const int trials = FusingConvolutions::norms;
    // Trials: all batch norms forward, two of them with a mask, and backward only those without a residual and with one
    // gradient, except that of the shortcut.
    if (t == DType::f32)
      CHECK(trials == convolutions + 4);
    else
      CHECK(trials > 0);
    FusingConvolutions::reset();
    FusingConvolutions::norm_is_faster = true;
    Fusing backend(o);
    check_every_op(backend, net, t);
    CHECK(backend.fused_layers().any() == (t != DType::f32));
    CHECK(FusingConvolutions::norms == 2 * trials);  // one in a trial and one in a step
    FusingConvolutions::reset();
    o.fusion = CudaFusion::off;
    Fusing off(o);
    check_every_op(off, net, t);
    CHECK(FusingConvolutions::trials == 0);
  }
}

TEST_CASE("captured steps of a fused net give the same results as other steps") {
  if (no_emulator()) return;
  FusingConvolutions::reset();
  const Graph net = bottlenecks();
  const auto run = [&](bool graph) {
    Fusing backend(options(CudaFusion::on, graph));
    Solo solo;
    TrainerOptions o;
    o.compute = DType::bf16;
    Trainer t(backend, solo, net, o);
    std::vector<double> losses;
    for (int i = 0; i < 6; ++i) {
      const std::int64_t rows = i % 3 == 2 ? 3 : 6;
      const auto batch = testing::random_batch(net, rows, static_cast<std::uint64_t>(i % 2));
      losses.push_back(t.step(batch.view(), rows, 0.05 / (1 + i)).wait().metrics.loss);
      losses.push_back(t.evaluate(batch.view()).loss);
    }
    return std::pair(losses, testing::fetch(backend, t.executor().parameter_data(), t.executor().parameters().bytes()));
  };
  CHECK(run(false) == run(true));
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("training a fused net lowers the loss") {
  if (no_emulator()) return;
  FusingConvolutions::reset();
  Fusing backend(options(CudaFusion::on));
  Solo solo;
  const Graph net = bottlenecks();
  TrainerOptions o;
  o.compute = DType::bf16;
  Trainer t(backend, solo, net, o);
  const auto batch = testing::random_batch(net, 16, 3);
  const double before = t.step(batch.view(), 16, 0.02).wait().metrics.loss;
  double after = before;
  for (int i = 0; i < 40; ++i) after = t.step(batch.view(), 16, 0.02).wait().metrics.loss;
  CHECK(after < 0.6 * before);
}
