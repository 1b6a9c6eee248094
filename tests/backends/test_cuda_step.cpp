// SPDX-License-Identifier: MIT
// Tests whole training steps on an emulated GPU (cuda_emulator.hpp). The device decides on the optimizer's update,
// clipping, trust ratios, the loss scale and averages in a captured step. Compares the results with those of the
// reference backend, and of the same backend with the host in charge.
#include <memory>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/emulated_cuda.hpp"
#include "backends/step_cases.hpp"
#include "engine/conformance.hpp"

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

TEST_CASE(
    "steps that the device ends equal steps of the reference backend: all optimizers, clipping, loss scales, "
    "averages") {
  if (skipped()) return;
  testing::check_steps_beside_reference([] { return std::make_unique<Emulated>(options()); }, 2e-4);
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("steps that the device ends equal steps that the host ends, with the same bits if the sums are the same") {
  if (skipped()) return;
  testing::check_steps_beside_host([](bool graph) { return std::make_unique<Emulated>(options(graph)); });
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("a step accepts micro-batches without rows") {
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
    ReferenceBackend reference;
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

TEST_CASE("a steady step is one graph launch, and the host waits only for an earlier step") {
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
    t.evaluate(view);  // its plan may need a larger workspace, and the workspace's address is part of the captured step
    steps(6);
    const std::size_t waits = device.stream_waits, events = device.event_waits, launches = device.graph_launches;
    steps(10);
    CHECK(device.stream_waits == waits);
    CHECK(device.event_waits <= events + 10);
    CHECK(device.graph_launches == launches + 10);
    CHECK(t.take_metrics().rows == 16 * 8);
    // Evaluation, and weights that the host changes, do not require another capture.
    t.evaluate(view);
    t.executor().parameters_changed();
    const std::size_t before = device.graph_launches;
    steps(3);
    CHECK(device.graph_launches == before + 3);
    CHECK(t.take_metrics().rows == 3 * 8);
  }
  device.graph_launches = 0;
}

TEST_CASE("kernels start early after tutti's own kernels, in captured and other steps, if GPU and driver can do it") {
  if (skipped()) return;
  auto& device = emulator::Device::instance();
  const Graph net = small_net();
  const auto batch = testing::random_batch(net, 8, 1);
  const BatchView view = batch.view();
  struct Case {
    int major, driver;
    bool graph, early;
    bool expected;
  };
  std::vector<float> weights;
  for (const Case& c :
       {Case{9, 13000, true, true, true}, Case{9, 13000, false, true, true}, Case{9, 12030, true, true, true},
        Case{9, 12020, true, true, false}, Case{8, 13000, true, true, false}, Case{9, 13000, true, false, false}}) {
    CAPTURE(c.major);
    CAPTURE(c.driver);
    CAPTURE(c.graph);
    device.major = c.major;
    device.driver = c.driver;
    device.runtime = 12080;
    CudaOptions o = options(c.graph);
    o.early_kernels = c.early;
    device.early_kernels = 0;
    device.kernels.clear();
    {
      Emulated backend(o);
      Solo solo;
      Trainer t(backend, solo, net, {.clip_norm = 1});
      for (int i = 0; i < 4; ++i) t.step({&view, 1}, 8, 0.05);
      CHECK(t.take_metrics().rows == 32);
      if (weights.empty()) weights = weights_of(t);
      CHECK(weights_of(t) == weights);
    }
    std::size_t all = 0;
    for (const auto& [name, n] : device.kernels) all += n;
    // Every step has the chain of a batch norm's passes, the loss, and the update.
    CHECK(device.early_kernels < all);
    CHECK((device.early_kernels > 0) == c.expected);
    if (c.expected) CHECK(4 * device.early_kernels > all);
    MESSAGE(device.early_kernels, " of ", all, " kernels start early");
  }
  device.major = 9;
  device.driver = 13000;
  device.runtime = CUDART_VERSION;
  device.graph_launches = 0;
}

TEST_CASE("wait() returns the metrics of one step, and take_metrics() those of all steps") {
  if (skipped()) return;
  const Graph net = small_net();
  Emulated backend(options());
  ReferenceBackend reference;
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

TEST_CASE(
    "restore() after commit() repeats the same steps, also if the host ends one between two that the device ends") {
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
    t.trace(&trace);  // with a trace the host ends the step
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
  [[nodiscard]] static UpdateOp update_op() { return SgdUpdate{0.9, false}; }
  [[nodiscard]] static double factor(const SquaredNorms&, double) { return 0.5; }
};
}  // namespace

TEST_CASE("the host ends the steps of an optimizer that has its own code for each tensor") {
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

TEST_CASE("a device error is reported once, and its message names the op") {
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
    CHECK(t.counters().step == 3);  // the step that a log of the failure names
  }
  device.fault = cudaSuccess;
  device.graph_launches = 0;
}
