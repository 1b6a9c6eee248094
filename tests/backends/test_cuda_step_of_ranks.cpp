// SPDX-License-Identifier: MIT
// Tests steps of several ranks on an emulated GPU (cuda_emulator.hpp): reductions are part of the captured step, and
// flags arrive one step late.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/engine/step/step_flags.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/emulated_cuda.hpp"
#include "backends/step_cases.hpp"
#include "engine/conformance.hpp"

using namespace tutti;

namespace {

using testing::Emulated;
// Twins sums in the backend's stream without a word to the backend, so no kernel may start early after it.
CudaOptions options(bool graph = true) {
  CudaOptions o = testing::emulated_options(graph);
  o.early_kernels = false;
  return o;
}
bool skipped() { return testing::no_emulator(); }

using testing::rate_at;
using testing::small_net;
using testing::states_of;
using testing::weights_of;

}  // namespace

namespace {

// Two ranks that compute identical steps. The device computes the sums, as with NCCL.
struct Twins {
  struct State : Work::State {
    [[nodiscard]] std::string name() const override { return "twins"; }
    [[nodiscard]] bool done() const override { return true; }
    void wait_device() override {}
    void wait() override { emulator::Device::instance().finish(); }
  };

  int calls = 0, finished = 0;
  std::uint64_t generation = 0;
  // flags that the other rank raises while the device works
  std::shared_ptr<std::uint32_t> raised = std::make_shared<std::uint32_t>(0);

  static constexpr StrategyTraits traits{.reads_device_memory = true};
  [[nodiscard]] Membership membership() const { return {0, 2, generation}; }
  [[nodiscard]] std::string name() const { return "twins"; }
  std::span<std::byte> allocate(std::size_t) { return {}; }
  void attach(const ArenaLayout&, const JobFacts&) {}
  void synchronise(std::span<StateSpan>) {}
  Work reduce(const Piece& piece) {
    ++calls;
    const bool word = piece.kind == Piece::Kind::gradients && piece.index == 0;
    emulator::Device::instance().submit([g = piece.bytes, word, flags = raised] {
      auto* const v = reinterpret_cast<float*>(g.data());
      for (std::size_t i = 0; i < g.size() / sizeof(float); ++i) v[i] += v[i];
      for (std::size_t i = 0; word && i < StepFlags::count; ++i)
        if ((*flags >> i & 1U) != 0) v[i] += 1;
    });
    return Work(std::make_shared<State>());
  }
  void finish() { ++finished; }
  void sum(std::span<double> v) {
    for (double& x : v) x += x;
  }
  void abort(const std::string&, ExitCode) noexcept {}
};
static_assert(DistributedStrategy<Twins>);
struct TwinsOnTheHost : Twins {
  static constexpr StrategyTraits traits{};
  Work reduce(const Piece& piece) {
    ++calls;
    auto* const v = reinterpret_cast<float*>(piece.bytes.data());
    for (std::size_t i = 0; i < piece.bytes.size() / sizeof(float); ++i) v[i] += v[i];
    return {};
  }
};

TrainerOptions shared(bool dynamic = false) {
  TrainerOptions o;
  o.bucket_bytes = o.first_bucket_bytes = 64;  // several buckets
  o.clip_norm = 1;
  o.dynamic_loss_scale = dynamic;
  o.ema_decay = 0.9;
  return o;
}

}  // namespace

TEST_CASE("several ranks: reductions are part of the captured step and give the same result") {
  if (skipped()) return;
  const Graph net = small_net();
  for (const bool dynamic : {false, true}) {
    Emulated backend(options()), other(options());
    Solo solo;
    Twins twins;
    Trainer alone(other, solo, net, shared(dynamic));
    Trainer t(backend, twins, net, shared(dynamic));
    REQUIRE(t.runs_ahead());
    for (int i = 0; i < 7; ++i) {
      const auto batch = testing::random_batch(net, 8, static_cast<std::uint64_t>(i % 3));
      const BatchView view = batch.view();
      alone.step({&view, 1}, 8, rate_at(i));
      t.step({&view, 1}, 16, rate_at(i));
    }
    CHECK(t.take_metrics().loss == alone.take_metrics().loss);
    // The sum of two half gradients and the mean of equal statistics are those of one rank.
    CHECK(weights_of(t) == weights_of(alone));
    CHECK(states_of(t) == states_of(alone));
    CHECK(twins.finished == 7);
    // One step was started op by op and one was captured, each with both copies of the state: consecutive steps
    // alternate between the copies. All other steps were replayed.
    const int per_step = twins.calls / 4;
    CHECK(per_step > 3);
    CHECK(twins.calls == 4 * per_step);
    const auto batch = testing::random_batch(net, 8, 1);
    const BatchView view = batch.view();
    const auto steps = [&](int n) {
      for (int i = 0; i < n; ++i) t.step({&view, 1}, 16, 0.01);
    };
    steps(2);
    CHECK(twins.calls == 4 * per_step);
    // A new generation requires a new graph.
    ++twins.generation;
    steps(4);
    CHECK(twins.calls == 8 * per_step);
    // Micro-batches, and a rank without rows, add their gradients once.
    const std::vector<BatchView> none{{nullptr, nullptr, 0}};
    const auto before = weights_of(t);
    t.step(none, 16, 0.01);
    CHECK(weights_of(t) != before);  // by the momentum
    const std::vector<BatchView> two{{view.images, view.labels, 4}, {view.images + 4 * 192, view.labels + 4, 4}};
    t.step(two, 16, 0.01);
    CHECK(t.take_metrics().rows == 7 * 8);
    CHECK(twins.calls == 10 * per_step);
  }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("several ranks: all ranks know each rank's flag one step later") {
  if (skipped()) return;
  const Graph net = small_net();
  const auto batch = testing::random_batch(net, 8, 1);
  const BatchView view = batch.view();
  Emulated backend(options());
  Twins twins;
  Trainer t(backend, twins, net, shared());
  const auto step = [&](std::uint32_t mine = 0) { return t.step({&view, 1}, 16, 0.01, mine).flags(); };
  auto& device = emulator::Device::instance();
  for (int round = 0; round < 3; ++round) {
    CHECK(step() == 0);
    CHECK(step(step_flag::stop) == 0);
    CHECK(step() == step_flag::stop);
    CHECK(step() == 0);
    // The flag of the other rank arrives.
    device.finish();
    *twins.raised = step_flag::membership;
    CHECK(step() == 0);
    device.finish();
    *twins.raised = 0;
    // A call of take_metrics() before the next step does not remove the flag.
    if (round == 1) (void)t.take_metrics();
    CHECK(step(step_flag::stop) == step_flag::membership);
    const StepResult own = t.step(view, 16, 0.01, step_flag::membership).wait();
    CHECK(own.flags == step_flag::membership);
    CHECK(step() == 0);
  }
  device.graph_launches = 0;
}

TEST_CASE("several ranks: a rank stops if the loss of another rank is not finite") {
  if (skipped()) return;
  const Graph net = small_net();
  const auto batch = testing::random_batch(net, 8, 1);
  const BatchView view = batch.view();
  Emulated backend(options());
  Twins twins;
  Trainer t(backend, twins, net, shared());
  auto& device = emulator::Device::instance();
  const auto step = [&] { t.step({&view, 1}, 16, 0.01); };
  for (int i = 0; i < 3; ++i) step();
  const auto before = weights_of(t);
  const auto statistics = states_of(t);
  device.finish();
  *twins.raised = step_flag::not_finite;
  step();
  device.finish();
  *twins.raised = 0;
  CHECK_THROWS_WITH_AS(step(), doctest::Contains("[step 4] expected a finite loss, got a loss on another rank"),
                       NotFiniteError);
  CHECK(weights_of(t) == before);
  CHECK(t.counters().step == 3);
  device.graph_launches = 0;
}

TEST_CASE("a strategy that reads host memory gets the device's gradients in host memory") {
  if (skipped()) return;
  const Graph net = small_net();
  const auto batch = testing::random_batch(net, 8, 1);
  const BatchView view = batch.view();
  const auto trained = [&](auto strategy) {
    Emulated backend(options());
    Trainer t(backend, strategy, net, shared());
    for (int i = 0; i < 4; ++i) t.step({&view, 1}, 16, 0.01);
    emulator::Device::instance().graph_launches = 0;
    CHECK(strategy.calls > 4);
    return std::pair(weights_of(t), states_of(t));
  };
  CHECK(trained(TwinsOnTheHost()) == trained(Twins()));
}
