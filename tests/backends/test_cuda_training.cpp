// SPDX-License-Identifier: MIT
// Compares the training of small nets in captured steps on an emulated GPU (cuda_emulator.hpp) with the reference
// backend.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/core/xxh64.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/emulated_cuda.hpp"
#include "backends/little_net.hpp"
#include "engine/suite.hpp"

using namespace tutti;

namespace {

using testing::Emulated;
using testing::LoopGemms;
CudaOptions options(bool graph = false) { return testing::emulated_options(graph); }
using testing::little_net;
bool skipped() { return testing::no_emulator(); }

// The losses of a trainer's steps, and the weights after the last step.
struct Trained {
  std::vector<double> losses;
  std::vector<std::byte> weights;
  friend bool operator==(const Trained&, const Trained&) = default;
};
template <class B>
Trained train(B& backend, TrainerOptions o, int steps) {
  Solo solo;
  const Graph net = little_net();
  Trainer t(backend, solo, net, o);
  Trained r;
  for (int i = 0; i < steps; ++i) {
    // Every third batch is short. The plan for it uses the same arenas.
    const std::int64_t rows = i % 3 == 2 ? 5 : 8;
    const auto batch = testing::random_batch(net, rows, static_cast<std::uint64_t>(i % 2));
    r.losses.push_back(t.step(batch.view(), rows, 0.05 / (1 + i)).wait().metrics.loss);
    r.losses.push_back(t.evaluate(batch.view()).loss);
  }
  r.weights = testing::fetch(backend, t.executor().parameter_data(), t.executor().parameters().bytes());
  return r;
}

}  // namespace

TEST_CASE("captured steps give the same results as other steps, with the current learning rate and loss scale") {
  if (skipped()) return;
  for (DType t : {DType::f32, DType::f16}) {
    TrainerOptions o;
    o.compute = t;
    o.dynamic_loss_scale = t == DType::f16;
    Emulated plain(options(false)), captured(options(true));
    auto& device = emulator::Device::instance();
    const Trained a = train(plain, o, 9);
    CHECK(device.graph_launches == 0);
    const Trained b = train(captured, o, 9);
    CHECK(device.graph_launches > 10);
    // A new model may have the addresses of the first model. The backend must capture its step again.
    const Trained c = train(captured, o, 9);
    CHECK(a == b);
    CHECK(a == c);
    device.graph_launches = 0;
  }
}
TEST_CASE("a captured step reads the loss scale from memory and does not contain its value") {
  if (skipped()) return;
  Emulated backend(options(true));
  const Graph net = little_net();
  Executor e(backend, net);
  testing::randomize(e, 1);
  const auto batch = testing::random_batch(net, 4, 1);
  std::vector<float> first;
  for (double scale : {1.0, 1.0, 1.0, 2.0, 4.0}) {
    e.train(batch.view(), {scale, 0.25});
    auto bytes = testing::fetch(backend, e.gradient_data(), e.parameters().bytes());
    std::vector<float> g(bytes.size() / sizeof(float));
    std::memcpy(g.data(), bytes.data(), bytes.size());
    if (first.empty()) first = g;
    int wrong = 0;
    for (std::size_t i = 0; i < g.size(); ++i) wrong += g[i] != first[i] * static_cast<float>(scale);
    CHECK(wrong == 0);
  }
  emulator::Device::instance().graph_launches = 0;
}
TEST_CASE("a captured step works after an invalid label") {
  if (skipped()) return;
  Emulated backend(options(true));
  const Graph net = little_net();
  Executor e(backend, net);
  testing::randomize(e, 1);
  auto batch = testing::random_batch(net, 4, 1);
  const double loss = e.train(batch.view(), {1, 0.25}).loss;
  for (int i = 0; i < 3; ++i) {
    auto bad = batch;
    bad.labels[2] = 10;
    CHECK_THROWS_WITH_AS(e.train(bad.view(), {1, 0.25}), doctest::Contains("labels in 0..9, got 10"), DataError);
    CHECK(e.train(batch.view(), {1, 0.25}).loss == loss);
  }
  emulator::Device::instance().graph_launches = 0;
}
TEST_CASE("training with f16 lowers the loss, and a scale that is too large is halved") {
  if (skipped()) return;
  Emulated backend(options());
  Solo solo;
  const Graph net = little_net();
  TrainerOptions o;
  o.compute = DType::f16;
  o.dynamic_loss_scale = true;
  Trainer t(backend, solo, net, o);
  t.counters().scale_exponent = 40;
  const auto batch = testing::random_batch(net, 16, 3);
  const double before = t.step(batch.view(), 16, 0.02).wait().metrics.loss;
  CHECK(t.counters().scale_exponent == 39);
  double after = before;
  for (int i = 0; i < 60; ++i) after = t.step(batch.view(), 16, 0.02).wait().metrics.loss;
  CHECK(t.counters().scale_exponent < 39);
  CHECK(after < 0.5 * before);
}
TEST_CASE("EMA, clipping, accumulation, AdamW, LARS and a committed state give the results of the reference backend") {
  if (skipped()) return;
  Emulated backend(options());
  Solo solo;
  const Graph net = little_net();
  for (const AnyOptimizer& optimizer : {AnyOptimizer(Sgd{0.9, true}), AnyOptimizer(Adamw{}), AnyOptimizer(Lars{})}) {
    TrainerOptions o;
    o.optimizer = optimizer;
    o.clip_norm = 1;
    o.ema_decay = 0.9;
    Trainer t(backend, solo, net, o);
    ReferenceBackend reference;
    Trainer r(reference, solo, net, o);
    const auto batch = testing::random_batch(net, 6, 3);
    for (int i = 0; i < 3; ++i) {
      const std::vector<BatchView> parts{batch.view(), batch.view()};
      const double loss = t.step(parts, 12, 0.01).wait().metrics.loss;
      CHECK(loss == doctest::Approx(r.step(parts, 12, 0.01).wait().metrics.loss).epsilon(1e-3));
    }
    CHECK(t.l2_penalty() == doctest::Approx(r.l2_penalty()).epsilon(1e-4));
    t.commit();
    double here = 0, there = 0;
    t.with_ema([&] { here = t.evaluate(batch.view()).loss; });
    r.with_ema([&] { there = r.evaluate(batch.view()).loss; });
    CHECK(here == doctest::Approx(there).epsilon(1e-3));
    const double loss = t.evaluate(batch.view()).loss;
    t.step(batch.view(), 6, 0.05);
    CHECK(t.evaluate(batch.view()).loss != loss);
    t.restore();
    CHECK(t.evaluate(batch.view()).loss == loss);
  }
}

namespace {

// The results of twenty steps: the loss of each step, and the bits of every committed tensor.
struct Record {
  std::vector<double> losses;
  std::vector<std::uint64_t> states;
};
Record record(const TrainerOptions& o, bool on_host) {
  Emulated backend(options(true));
  Solo solo;
  const Graph net = little_net();
  Trainer t(backend, solo, net, o);
  StepTrace trace;
  if (on_host) t.trace(&trace);  // the host's StepFinisher then ends the steps
  REQUIRE(t.runs_ahead() == !on_host);
  Record r;
  for (int i = 0; i < 20; ++i) {
    const auto batch = testing::random_batch(net, 8, static_cast<std::uint64_t>(i % 3));
    r.losses.push_back(t.step(batch.view(), 8, 0.05).wait().metrics.loss / 8);
    t.commit();
    std::uint64_t all = 0;
    for (const bool optimizer : {false, true})
      for (const StateSpan& s : t.committed_tensors(optimizer))
        all = all * 31 + xxh64({reinterpret_cast<const char*>(s.bytes.data()), s.bytes.size()});
    r.states.push_back(all);
  }
  emulator::Device::instance().graph_launches = 0;
  return r;
}

}  // namespace

TEST_CASE("twenty steps give the recorded losses, and each gives the same bits as a step that the host ends") {
  if (skipped()) return;
  struct Recorded {
    TrainerOptions options;
    std::vector<double> losses;
  };
  const std::vector<Recorded> all{
      {{.compute = DType::f32, .optimizer = Sgd{0.9, true}, .weight_decay = 5e-4, .ema_decay = 0.9},
       {2.27701, 2.48391, 2.48389, 1.89703, 1.99514, 2.02939, 1.61705, 1.68679, 1.67365, 1.42540,
        1.31670, 1.37042, 1.19619, 0.97134, 1.09507, 0.90337, 0.66077, 0.81238, 0.63424, 0.39919}},
      {{.compute = DType::f16, .optimizer = Sgd{0.9, false}, .dynamic_loss_scale = true},
       {2.27693, 2.48547, 2.48895, 1.93534, 2.05679, 2.08036, 1.67772, 1.76763, 1.73471, 1.51601,
        1.47057, 1.46643, 1.31941, 1.15219, 1.21409, 1.08521, 0.83536, 0.95139, 0.81669, 0.56741}},
      {{.compute = DType::bf16, .optimizer = Adamw{}, .weight_decay = 0.05},
       {2.27792, 2.39060, 2.73026, 1.86126, 1.71412, 1.90105, 1.41342, 1.30518, 1.39923, 1.01015,
        0.90325, 1.07976, 0.68006, 0.54605, 0.75842, 0.40767, 0.30443, 0.38899, 0.24214, 0.11862}}};
  for (const Recorded& recorded : all) {
    CAPTURE(name_of(recorded.options.compute));
    const Record device = record(recorded.options, false), host = record(recorded.options, true);
    CHECK(device.losses == host.losses);
    CHECK(device.states == host.states);
    REQUIRE(recorded.losses.size() == device.losses.size());
    // The compiler and its implementation of exponentials affect the last bits.
    const double epsilon = recorded.options.compute == DType::f32 ? 1e-4 : 2e-2;
    for (std::size_t i = 0; i < device.losses.size(); ++i)
      CHECK(device.losses[i] == doctest::Approx(recorded.losses[i]).epsilon(epsilon));
  }
}
