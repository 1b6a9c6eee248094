// SPDX-License-Identifier: MIT
// Whole training steps on a GPU that is played by the processor (cuda_emulator.hpp): the optimizer, clipping, trust
// ratios, the loss scale and averages decided on the device, captured and replayed, beside Reference and beside the
// same backend with the host in charge.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <dlfcn.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/step_flags.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/trainer.hpp>

#include "backend/conformance.hpp"
#include "backends/emulated_cuda.hpp"
#include "backends/step_cases.hpp"
#include "data/temp_folder.hpp"

using namespace tutti;

namespace {

using testing::Emulated;
CudaOptions options(bool graph = true) { return testing::emulated_options(graph); }
bool skipped() { return testing::no_emulator(); }

using testing::distance_of;
using testing::rate_at;
using testing::small_net;
using testing::states_of;
using testing::step_recipes;
using testing::StepRecipe;
using testing::weights_of;

}  // namespace

TEST_CASE("steps on the device are those of Reference: every optimizer, clipping, scales, averages") {
  if (skipped()) return;
  testing::check_steps_beside_reference([] { return std::make_unique<Emulated>(options()); }, 2e-4);
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("the device decides what the host would, to the bit where sums are the same") {
  if (skipped()) return;
  testing::check_steps_beside_host([](bool graph) { return std::make_unique<Emulated>(options(graph)); });
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("micro-batches, one of them without rows") {
  if (skipped()) return;
  const Graph net = small_net();
  const auto batch = testing::random_batch(net, 9, 4);
  const auto cut = [&](std::int64_t begin, std::int64_t end) {
    return BatchView{batch.images.data() + begin * 192, batch.labels.data() + begin, end - begin};
  };
  for (const auto& parts : {std::vector{cut(0, 4), cut(4, 9)}, std::vector{cut(0, 3), cut(3, 3), cut(3, 9)},
                            std::vector{cut(0, 0)}, std::vector{cut(0, 9), cut(9, 9)}}) {
    CAPTURE(parts.size());
    Emulated backend(options());
    Reference reference;
    Solo solo;
    TrainerOptions o;
    o.clip_norm = 0.5;
    Trainer t(backend, solo, net, o);
    Trainer r(reference, solo, net, o);
    for (int i = 0; i < 5; ++i) {
      t.step(parts, 9, rate_at(i));
      r.step(parts, 9, rate_at(i));
    }
    const Metrics a = t.take_metrics(), b = r.take_metrics();
    CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-4));
    CHECK(a.rows == b.rows);
    CHECK(distance_of(weights_of(t), weights_of(r)) < 1e-4);
    CHECK(distance_of(states_of(t), states_of(r)) < 1e-4);
    CHECK(t.counters() == r.counters());
    CHECK_THROWS_AS(t.step(std::span<const BatchView>{}, 9, 0.1), UsageError);
  }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("a steady step is one graph, and the host waits for nothing but the step some steps before") {
  if (skipped()) return;
  auto& device = emulator::Device::instance();
  const Graph net = small_net();
  for (const StepRecipe& recipe : step_recipes()) {
    CAPTURE(recipe.name);
    Emulated backend(options());
    Solo solo;
    Trainer t(backend, solo, net, recipe.options);
    const auto batch = testing::random_batch(net, 8, 1);
    const BatchView view = batch.view();
    const auto steps = [&](int n) {
      for (int i = 0; i < n; ++i) t.step({&view, 1}, 8, 0.01);
    };
    t.evaluate(view);  // its plan may want a larger workspace, whose address is part of what is captured
    steps(6);
    const std::size_t waits = device.stream_waits, events = device.event_waits, launches = device.graph_launches;
    steps(10);
    CHECK(device.stream_waits == waits);
    CHECK(device.event_waits <= events + 10);
    CHECK(device.graph_launches == launches + 10);
    CHECK(t.take_metrics().rows == 16 * 8);
    // Evaluation, and weights that change from outside, are no reason to capture another step.
    t.evaluate(view);
    t.executor().parameters_changed();
    const std::size_t before = device.graph_launches;
    steps(3);
    CHECK(device.graph_launches == before + 3);
    CHECK(t.take_metrics().rows == 3 * 8);
  }
  device.graph_launches = 0;
}

TEST_CASE("a step that is waited for tells of itself; all are in take_metrics()") {
  if (skipped()) return;
  const Graph net = small_net();
  Emulated backend(options());
  Reference reference;
  Solo solo;
  Trainer t(backend, solo, net, {});
  Trainer r(reference, solo, net, {});
  double waiting = 0;
  for (int i = 0; i < 9; ++i) {
    const auto batch = testing::random_batch(net, 7, static_cast<std::uint64_t>(i));
    const BatchView view = batch.view();
    if (i % 3 == 1) {
      const StepResult mine = t.step(view, 7, 0.1, step_flag::stop).wait();
      const double loss = r.step(view, 7, 0.1).wait().metrics.loss;
      CHECK(mine.metrics.loss == doctest::Approx(loss).epsilon(1e-4));
      waiting += loss;
      CHECK(mine.metrics.rows == 7);
      CHECK(mine.flags == step_flag::stop);
    } else {
      CHECK(t.step({&view, 1}, 7, 0.1, step_flag::membership).flags() == step_flag::membership);
      waiting += r.step(view, 7, 0.1).wait().metrics.loss;
    }
    if (i == 5) {
      CHECK(t.take_metrics().loss == doctest::Approx(waiting).epsilon(1e-4));
      waiting = 0;
    }
  }
  CHECK(t.take_metrics().loss == doctest::Approx(waiting).epsilon(1e-4));
  CHECK(t.take_metrics().loss == 0);
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("a loss scale that overflows comes down, on the device as on the host") {
  if (skipped()) return;
  const Graph net = small_net();
  const auto batch = testing::random_batch(net, 8, 3);
  const BatchView view = batch.view();
  TrainerOptions o;
  o.compute = DType::f16;
  o.dynamic_loss_scale = true;
  o.ema_decay = 0.5;
  Emulated backend(options()), other(options());
  Solo solo;
  Trainer t(backend, solo, net, o), h(other, solo, net, o);
  StepTrace trace;
  h.trace(&trace);
  const auto start = weights_of(t);
  t.counters().scale_exponent = h.counters().scale_exponent = 40;
  t.step({&view, 1}, 8, 0.05);
  CHECK(t.counters().scale_exponent == 39);
  CHECK(t.loss_scale() == std::ldexp(1.0, 39));
  CHECK(weights_of(t) == start);
  h.step(view, 8, 0.05);
  for (int i = 0; i < 40; ++i) {
    t.step({&view, 1}, 8, 0.05);
    h.step(view, 8, 0.05);
  }
  CHECK(t.counters() == h.counters());
  CHECK(t.counters().scale_exponent < 39);
  CHECK(weights_of(t) != start);
  CHECK(weights_of(t) == weights_of(h));
  t.with_ema([&] { h.with_ema([&] { CHECK(weights_of(t) == weights_of(h)); }); });
  // It doubles after 2,000 steps, and what a checkpoint says counts.
  t.counters().scale_steps = 1998;
  const std::int64_t exponent = t.counters().scale_exponent = 4;
  t.step({&view, 1}, 8, 0.001);
  t.step({&view, 1}, 8, 0.001);
  CHECK(t.counters().scale_exponent == exponent + 1);
  CHECK(t.counters().scale_steps == 0);
  t.commit();
  for (int i = 0; i < 3; ++i) t.step({&view, 1}, 8, 0.001);
  t.restore();
  CHECK(t.counters().scale_steps == 0);
  t.step({&view, 1}, 8, 0.001);
  CHECK(t.counters().scale_steps == 1);
  emulator::Device::instance().graph_launches = 0;
}

namespace {

// A float of the parameters.
void set_parameter(Trainer& t, const char* name, float value) {
  auto& e = t.executor();
  const std::size_t at = e.parameters().find(name)->offset * sizeof(float);
  e.backend().memory().copy_in(static_cast<std::byte*>(e.parameter_data()) + at, &value, sizeof value);
  e.parameters_changed();
}
float get_parameter(Trainer& t, const char* name) {
  return weights_of(t)[t.executor().parameters().find(name)->offset];
}

}  // namespace

TEST_CASE("a loss that is not finite: no later step changes weights, and the error names the step") {
  if (skipped()) return;
  const Graph net = small_net();
  const auto batch = testing::random_batch(net, 8, 3);
  const BatchView view = batch.view();
  for (const bool graph : {false, true})
    for (const bool dynamic : {false, true}) {
      Emulated backend(options(graph));
      Solo solo;
      TrainerOptions o;
      o.dynamic_loss_scale = dynamic;
      o.ema_decay = 0.9;
      Trainer t(backend, solo, net, o);
      const auto step = [&] { t.step({&view, 1}, 8, 0.05); };
      for (int i = 0; i < 3; ++i) step();
      const float bias = get_parameter(t, "fc.bias");
      const auto before = weights_of(t);
      set_parameter(t, "fc.bias", std::numeric_limits<float>::quiet_NaN());
      step();
      set_parameter(t, "fc.bias", bias);
      step();  // its loss is finite, and yet it must change nothing
      step();
      CHECK(weights_of(t) == before);
      CHECK_THROWS_WITH_AS((void)t.take_metrics(), doctest::Contains("[step 4] expected a finite loss, got"),
                           NotFiniteError);
      CHECK(weights_of(t) == before);
      CHECK(t.counters().step == 3);
      // The average did not follow either, and once it was said training can go on.
      step();
      CHECK(t.take_metrics().rows == 8);
      CHECK(weights_of(t) != before);
      CHECK(t.counters().step == 4);

      // Nobody asks: it is said all the same.
      set_parameter(t, "fc.bias", std::numeric_limits<float>::infinity());
      const auto many = [&] {
        for (int i = 0; i < 8; ++i) step();
      };
      CHECK_THROWS_WITH_AS(many(), doctest::Contains("[step 5]"), NotFiniteError);
      set_parameter(t, "fc.bias", bias);
      step();
      t.commit();
      CHECK(t.committed().counters().step == 5);
    }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("gradients that are not finite at a scale of 1 end the run") {
  if (skipped()) return;
  const Graph net = small_net();
  auto batch = testing::random_batch(net, 8, 3);
  std::fill(batch.labels.begin(), batch.labels.end(), 0);
  const BatchView view = batch.view();
  TrainerOptions o;
  o.compute = DType::f16;
  o.dynamic_loss_scale = true;
  Emulated backend(options());
  Solo solo;
  Trainer t(backend, solo, net, o);
  t.step({&view, 1}, 8, 0.01);
  // A loss that is finite, and a gradient that overflows on its way back.
  auto w = weights_of(t);
  const Slice& s = *t.executor().parameters().find("fc.weight");
  for (std::size_t i = 0; i < s.count; ++i) w[s.offset + i] = i < 8 ? -60000.0F : 60000.0F;
  const Slice& n = *t.executor().parameters().find("bn1.weight");
  for (std::size_t i = 0; i < n.count; ++i) w[n.offset + i] = 1e-7F;
  backend.copy_in(t.executor().parameter_data(), w.data(), w.size() * sizeof(float));
  t.executor().parameters_changed();
  t.counters().scale_exponent = 3;
  const auto until_it_ends = [&] {
    for (int i = 0; i < 20; ++i) t.step({&view, 1}, 1, 0.01);
    (void)t.take_metrics();
  };
  bool ended = false;
  try {
    until_it_ends();
  } catch (const NotFiniteError& e) {
    ended = true;
    CHECK(std::string(e.what()).find("finite gradients") != std::string::npos);
    CHECK(std::string(e.what()).find("[step 5]") != std::string::npos);  // scales 8, 4, 2 and 1
    CHECK(t.counters().scale_exponent == 0);
    CHECK(weights_of(t) == w);
  }
  CHECK(ended);
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("a label that is no class: nothing is learned from it") {
  if (skipped()) return;
  const Graph net = small_net();
  auto batch = testing::random_batch(net, 8, 3);
  const BatchView view = batch.view();
  Emulated backend(options());
  Solo solo;
  Trainer t(backend, solo, net, {});
  for (int round = 0; round < 2; ++round) {
    t.step({&view, 1}, 8, 0.05);
    const auto before = weights_of(t);
    auto bad = batch;
    bad.labels[5] = 4;
    const BatchView wrong = bad.view();
    t.step({&wrong, 1}, 8, 0.05);
    t.step({&view, 1}, 8, 0.05);
    CHECK_THROWS_WITH_AS((void)t.take_metrics(), doctest::Contains("labels in 0..3, got 4"), DataError);
    CHECK(weights_of(t) == before);
    CHECK(t.counters().step == 1 + round);
  }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("a committed state, and a step with the host in between") {
  if (skipped()) return;
  const Graph net = small_net();
  const auto batch = testing::random_batch(net, 8, 3);
  const BatchView view = batch.view();
  Emulated backend(options());
  Solo solo;
  TrainerOptions o;
  o.ema_decay = 0.9;
  Trainer t(backend, solo, net, o);
  t.step({&view, 1}, 8, 0.05);
  t.commit();
  const auto next = [&] {
    t.step({&view, 1}, 8, 0.05);
    StepTrace trace;
    t.trace(&trace);  // the host ends this one
    t.step({&view, 1}, 8, 0.05);
    t.trace(nullptr);
    t.step({&view, 1}, 8, 0.05);
    return weights_of(t);
  };
  const auto one = next();
  CHECK(t.counters().step == 4);
  t.restore();
  CHECK(t.counters().step == 1);
  CHECK(next() == one);
  CHECK(t.take_metrics().rows == 24);
  t.initialize();
  CHECK(t.take_metrics().rows == 0);
  CHECK(t.counters().step == 0);
  emulator::Device::instance().graph_launches = 0;
}

namespace {
struct Halving {
  static constexpr int slots = 1;
  static constexpr bool per_tensor = true;
  [[nodiscard]] static UpdateOp update_op() { return op::SgdUpdate{0.9, false}; }
  [[nodiscard]] static double factor(const SquaredNorms&, double) { return 0.5; }
};
}  // namespace

TEST_CASE("an optimizer with code of its own for each tensor runs with the host") {
  if (skipped()) return;
  const Graph net = small_net();
  Emulated backend(options());
  Solo solo;
  TrainerOptions o;
  o.optimizer = Halving{};
  Trainer t(backend, solo, net, o);
  CHECK(!t.runs_ahead());
  const auto batch = testing::random_batch(net, 8, 3);
  const BatchView view = batch.view();
  t.step({&view, 1}, 8, 0.05);
  CHECK(t.take_metrics().rows == 8);
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("an error of the device names the op, and is told once") {
  if (skipped()) return;
  auto& device = emulator::Device::instance();
  const Graph net = small_net();
  const auto batch = testing::random_batch(net, 8, 3);
  const BatchView view = batch.view();
  {
    Emulated backend(options());
    Solo solo;
    TrainerOptions o;
    o.dynamic_loss_scale = true;
    Trainer t(backend, solo, net, o);
    for (int i = 0; i < 3; ++i) t.step({&view, 1}, 8, 0.05);
    device.fault = cudaErrorIllegalAddress;
    CHECK_THROWS_WITH_AS((void)t.take_metrics(), doctest::Contains("the last op started was"), DeviceError);
    CHECK(t.counters().step == 3);  // as a log of the failure asks
  }
  device.fault = cudaSuccess;
  device.graph_launches = 0;
}

namespace {

// Two ranks of which the other one does what this one does; the sums are made on the device, as NCCL makes them.
struct Twins {
  struct State : Work::State {
    [[nodiscard]] std::string name() const override { return "twins"; }
    [[nodiscard]] bool done() const override { return true; }
    void wait_device() override {}
    void wait() override { emulator::Device::instance().finish(); }
  };

  int calls = 0, finished = 0;
  std::uint64_t generation = 0;
  std::shared_ptr<std::uint32_t> raised = std::make_shared<std::uint32_t>(0);  // by the other, while the device works

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
};

TrainerOptions shared(bool dynamic = false) {
  TrainerOptions o;
  o.bucket_bytes = o.first_bucket_bytes = 64;  // several
  o.clip_norm = 1;
  o.dynamic_loss_scale = dynamic;
  o.ema_decay = 0.9;
  return o;
}

}  // namespace

TEST_CASE("several ranks: reductions are part of the captured step, and come to the same") {
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
    // Halves that are added, and statistics whose mean is taken.
    CHECK(weights_of(t) == weights_of(alone));
    CHECK(states_of(t) == states_of(alone));
    CHECK(twins.finished == 7);
    // Once started, once captured, then replayed; two of each, because of two steps by turns the state is kept.
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
    // Other members: another graph.
    ++twins.generation;
    steps(4);
    CHECK(twins.calls == 8 * per_step);
    // Micro-batches, and a rank without rows, give their gradients once.
    const std::vector<BatchView> none{{nullptr, nullptr, 0}};
    const auto before = weights_of(t);
    t.step(none, 16, 0.01);
    CHECK(weights_of(t) != before);  // momentum
    const std::vector<BatchView> two{{view.images, view.labels, 4}, {view.images + 4 * 192, view.labels + 4, 4}};
    t.step(two, 16, 0.01);
    CHECK(t.take_metrics().rows == 7 * 8);
    CHECK(twins.calls == 10 * per_step);
  }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("several ranks: a flag of any of them is known one step later") {
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
    // The other rank's
    device.finish();
    *twins.raised = step_flag::membership;
    CHECK(step() == 0);
    device.finish();
    *twins.raised = 0;
    // Metrics that somebody wants meanwhile do not take it away.
    if (round == 1) (void)t.take_metrics();
    CHECK(step(step_flag::stop) == step_flag::membership);
    const StepResult own = t.step(view, 16, 0.01, step_flag::membership).wait();
    CHECK(own.flags == step_flag::membership);
    CHECK(step() == 0);
  }
  device.graph_launches = 0;
}

TEST_CASE("several ranks: a loss that is not finite on another rank stops this one") {
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
  CHECK_THROWS_WITH_AS(step(), doctest::Contains("[step 4] expected a finite loss, got one on another rank"),
                       NotFiniteError);
  CHECK(weights_of(t) == before);
  CHECK(t.counters().step == 3);
  device.graph_launches = 0;
}

TEST_CASE("a strategy that reads the host's memory does not train on a device") {
  if (skipped()) return;
  Emulated backend(options());
  TwinsOnTheHost host;
  CHECK_THROWS_WITH_AS((Trainer(backend, host, small_net(), shared())),
                       doctest::Contains("a strategy that reads the memory of backend 'cuda'"), UsageError);
}

namespace {

struct Recorder : FitListener {
  std::vector<StepReport> steps;
  std::vector<EpochReport> epochs;
  void step(const StepReport& r) override { steps.push_back(r); }
  void epoch(const EpochReport& r) override { epochs.push_back(r); }
};

template <class B>
Recorder fitted(B& backend, FitOptions o, FitListener* another = nullptr, std::int64_t micro_batch = 0) {
  // Before a library of this name is looked for: the loader takes the open one.
  static void* const nvml = ::dlopen(TUTTI_STAND_IN, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(nvml != nullptr);
  Solo solo;
  TrainerOptions as;
  as.ema_decay = 0.9;
  as.micro_batch = micro_batch;
  Trainer t(backend, solo, small_net(), as);
  Synthetic images({.size = 44, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true});
  Synthetic held({.size = 20, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true, .first = 1000});
  Loader train(images, {.placement = {8, 0, 1}, .seed = 9, .threads = 1}),
      test(held, {.placement = {10, 0, 1}, .shuffle = false, .one_pass = true, .threads = 1});
  Recorder r;
  o.global_batch = 8;
  o.epochs = 2;
  std::vector<FitListener*> listeners{&r};
  if (another != nullptr) listeners.push_back(another);
  Chief chief(t, {.listeners = listeners});
  fit(t, train, &test, chief, o);
  CHECK(t.counters().samples == 88);
  return r;
}

}  // namespace

TEST_CASE("the training loop reports the same sums, and asks for them where it reports") {
  if (skipped()) return;
  for (const std::int64_t micro_batch : {8, 4}) {
    FitOptions o;
    o.report_every = 4;
    Emulated backend(options());
    Reference reference;
    const Recorder a = fitted(backend, o, nullptr, micro_batch), b = fitted(reference, o, nullptr, micro_batch);
    REQUIRE(a.steps.size() == b.steps.size());
    for (std::size_t i = 0; i < a.steps.size(); ++i) {
      CHECK(a.steps[i].step == b.steps[i].step);
      CHECK(a.steps[i].train_loss == doctest::Approx(b.steps[i].train_loss).epsilon(1e-3));
    }
    REQUIRE(a.epochs.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(a.epochs[i].train_loss == doctest::Approx(b.epochs[i].train_loss).epsilon(1e-3));
      CHECK(a.epochs[i].train_top1 == doctest::Approx(b.epochs[i].train_top1).epsilon(0.05));
      CHECK(a.epochs[i].test->loss == doctest::Approx(b.epochs[i].test->loss).epsilon(1e-3));
      CHECK(a.epochs[i].test_ema->loss == doctest::Approx(b.epochs[i].test_ema->loss).epsilon(1e-3));
    }
  }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("the log tells the GPU's utilisation") {
  if (skipped()) return;
  FitOptions o;
  o.report_every = 1;
  const test::TempFolder folder;
  {
    RunLog log(folder.path(), 3, [](const std::string& c) { FAIL_CHECK(c); });
    Emulated backend(options());
    fitted(backend, o, &log);
    CHECK(backend.utilisation().has_value());
  }
  // The stand-in counts. What it said before the first step is not told; then each row has a reading of its own, and an
  // epoch the mean of them.
  double first = 0, last = 0;
  int epochs = 0;
  std::ifstream in(folder / "log.jsonl");
  for (std::string text; std::getline(in, text);) {
    const io::Json line = io::parse_json(text, "log.jsonl");
    REQUIRE_MESSAGE(line.find("gpu_utilisation") != nullptr, text);
    const double told = line.at("gpu_utilisation").as_double();
    if (line.at("event").as_string() == "step") {
      if (last > 0) CHECK(told == doctest::Approx(last + 0.01));
      last = told;
      if (first == 0) first = told;
    } else {
      ++epochs;
      CHECK(told == doctest::Approx((first + last) / 2));
      first = 0;
    }
  }
  CHECK(epochs == 2);

  Reference reference;
  const Recorder none = fitted(reference, o);
  for (const auto& r : none.steps) CHECK_FALSE(r.gpu_utilisation);
  for (const auto& r : none.epochs) CHECK_FALSE(r.gpu_utilisation);
  cudaDeviceProp elsewhere{};
  CHECK_FALSE(cuda::Utilisation(elsewhere)());
  emulator::Device::instance().graph_launches = 0;
}
