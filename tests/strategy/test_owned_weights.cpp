// SPDX-License-Identifier: MIT
// Tests training with a server that owns the weights: each worker pushes and pulls alone, with the same trainer and the
// same fit() as in any other training.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/trainer.hpp>

#include "owned_weights.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

struct NotSaid : Worker {  // has functions that its traits do not declare
  static constexpr StrategyTraits traits{};
};
struct NoPull : Worker {
  static constexpr StrategyTraits traits{.owns_weights = true};
  void pull() {}
};
static_assert(!DistributedStrategy<NotSaid> && !DistributedStrategy<NoPull>);

}  // namespace

TEST_CASE("training with one worker gives the same bits whether the servers or the worker own the weights") {
  for (const AnyOptimizer& optimizer : {AnyOptimizer(Sgd{0.9, true}), AnyOptimizer(Adamw{})})
    for (const std::int64_t micro_batch : {0, 5}) {
      CAPTURE(optimizer.slots());
      CAPTURE(micro_batch);
      TrainerOptions o = options(optimizer);
      o.micro_batch = micro_batch;
      o.loss_scale = 4;
      o.ema_decay = 0.9;
      FitOptions f;
      f.epochs = 3;
      f.global_batch = batch;
      f.schedule = rates;
      std::vector<std::byte> states[2];
      EvaluationReport reports[2];
      for (const bool owned : {false, true}) {
        ReferenceBackend backend;
        Loader train = loader(), test = loader();
        const auto run = [&](auto& strategy) {
          Trainer t(backend, strategy, net(), o);
          t.synchronise();
          const FitResult r = fit(t, train, &test, f);
          CHECK(r.counters.step == 24);
          reports[owned ? 1 : 0] = *r.last->test;
          states[owned ? 1 : 0] = state_of(t);
        };
        if (owned) {
          Server server(o, samples / batch, 3 * samples / batch, batch);
          Worker w(server.owner, 0, 1);
          run(w);
          CHECK(server.owner.steps() == 24);
        } else {
          Solo solo;
          run(solo);
        }
      }
      CHECK(states[0] == states[1]);
      CHECK(reports[0].loss == reports[1].loss);
    }
}

TEST_CASE("independent workers count each other's steps and see each sample once per epoch") {
  const TrainerOptions o = options(Sgd{0.9, false});
  constexpr int workers = 3, epochs = 8;
  Server server(o, workers * samples / batch, epochs * workers * samples / batch, batch);
  server.owner.at_work = workers;
  std::vector<std::thread> threads;
  std::vector<FitResult> results(workers);
  std::vector<std::string> errors(workers);
  std::vector<int> evaluated(workers);
  for (int r = 0; r < workers; ++r)
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      try {
        CpuBackend backend({1, {}, {}});
        Worker w(server.owner, r, workers);
        Trainer t(backend, w, net(), o);
        t.synchronise();
        Loader train = loader(r, workers), test = loader();
        FitOptions f;
        f.epochs = epochs;
        f.global_batch = batch;
        f.schedule = rates;
        f.after_epoch = [&](const EpochReport& e) { evaluated[i] += e.test ? 1 : 0; };
        results[i] = fit(t, train, &test, f);
        w.end();
      } catch (const std::exception& e) {
        errors[i] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  std::int64_t last = 0;
  for (std::size_t i = 0; i < workers; ++i) {
    CHECK(errors[i] == "");
    CHECK(results[i].counters.samples == epochs * samples);
    CHECK(evaluated[i] == (i == 0 ? epochs : 0));
    last = std::max(last, results[i].counters.step);
  }
  CHECK(results[0].counters.step == last);  // it saves the steps of all workers
  CHECK(server.owner.steps() == workers * epochs * samples / batch);
  CHECK(last == server.owner.steps());
  // The weights are the result of all workers, whichever finished last. They need the statistics of each batch.
  CpuBackend backend({1, {}, {}});
  Reader reader(server.owner, 0, workers);
  Trainer t(backend, reader, net(), o);
  t.synchronise();
  Loader train = loader();
  for (std::int64_t i = 0; i < samples / batch; ++i) t.step(train.next(), 0);
  const Metrics m = t.take_metrics();
  CHECK(m.rows == samples);
  CHECK(m.mean_loss() < 1.2);  // ln 4 at the start
}

namespace {

// Two workers of a server in one thread. The first one runs fit().
struct TwoWorkers {
  TrainerOptions o = options(Sgd{0.9, false});
  Server server{o, 8, 100, batch};
  Worker first{server.owner, 0, 2}, second{server.owner, 1, 2};
  ReferenceBackend backend;
  Trainer a{backend, first, net(), o}, b{backend, second, net(), o};
  Loader train_a = loader(0, 2), train_b = loader(1, 2);
  FitOptions f;
  TwoWorkers(std::int64_t epochs, std::int64_t steps) {
    f.epochs = epochs;
    f.global_batch = batch;
    f.max_steps = steps;
  }
};

}  // namespace

TEST_CASE("a worker stops when all workers together have done the steps") {
  TwoWorkers two(1000, 7);
  two.a.synchronise();
  two.b.synchronise();
  std::int64_t steps_of_b = 0;
  two.f.after_step = [&](const FitStep& s) {
    if (s.step >= 4) return;  // b steps after each of the first steps of a
    const Batch& batch_b = two.train_b.next();
    two.b.step(batch_b, 0.1);
    ++steps_of_b;
  };
  const FitResult r = fit(two.a, two.train_a, nullptr, two.f);
  CHECK(r.counters.step == 7);
  CHECK(steps_of_b == 2);
  CHECK(state_of(two.a) != std::vector<std::byte>{});
}

TEST_CASE("a worker that joins late continues together with the other workers") {
  TwoWorkers two(4, 20);
  FitOptions& f = two.f;
  two.a.synchronise();
  (void)fit(two.a, two.train_a, nullptr, f);
  two.second.late = true;
  two.b.synchronise();
  f.max_steps = 0;
  std::vector<FitStep> steps;
  f.after_step = [&](const FitStep& s) { steps.push_back(s); };
  const FitResult r = fit(two.b, two.train_b, nullptr, f);
  // The 20 steps so far are 10 of each of the two workers. An epoch has 8 steps of each.
  REQUIRE(steps.size() == 22);
  CHECK(steps[0].epoch == 2);
  CHECK(steps[0].step_in_epoch == 3);
  CHECK(r.counters.step == 42);
}

TEST_CASE("values that are not finite are not pushed") {
  const TrainerOptions o = options(Sgd{0.9, false});
  Server server(o, 8, 100, batch);
  Worker w(server.owner, 0, 1);
  ReferenceBackend backend;
  Trainer t(backend, w, net(), o);
  t.synchronise();
  Loader train = loader();
  t.step(train.next(), 0.1);
  const int pushes = w.pushes;
  CHECK(pushes > 2);
  const auto weights = [&] {
    t.pull();
    std::vector<float> all;
    for (const char* name : {"conv1.weight", "fc.weight", "fc.bias"}) {
      const Tensor<float> p = t.parameter(name);
      all.insert(all.end(), p.data(), p.data() + p.size());
    }
    return all;
  };
  const auto before = weights();
  // The test breaks a bias in the trainer. The server still has the earlier value.
  const Slice* bias = t.executor().parameters().find("fc.bias");
  REQUIRE(bias != nullptr);
  float& b = static_cast<float*>(t.executor().parameter_data())[bias->offset];
  b = std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH_AS(t.step(train.next(), 0.1), doctest::Contains("finite loss"), NotFiniteError);
  CHECK(w.pushes == pushes);
  CHECK(weights() == before);
  CHECK(t.counters().step == 1);
}

TEST_CASE("options that servers do not support are refused before the first step") {
  Owner owner([](const ServerPart&) {});
  Worker w(owner, 0, 1);
  ReferenceBackend backend;
  const auto refuse = [&](const TrainerOptions& o, const char* what) {
    CHECK_THROWS_WITH_AS(Trainer(backend, w, net(), o), doctest::Contains(what), UsageError);
  };
  for (const AnyOptimizer& o : {AnyOptimizer(Lars{}), AnyOptimizer(Lamb{}), AnyOptimizer(Muon{})})
    refuse(options(o), "got an optimizer that needs whole tensors");
  TrainerOptions o = options(Sgd{});
  o.clip_norm = 1;
  refuse(o, "got a limit to the norm of all gradients");
  o = options(Sgd{});
  o.dynamic_loss_scale = true;
  refuse(o, "got a dynamic loss scale");
  Solo solo;
  AnyStrategy any = AnyStrategy::refer(solo);
  CHECK(!any.owns_weights());
  CHECK_THROWS_WITH_AS(static_cast<void>(any.progress()),
                       doctest::Contains("a strategy that owns the weights, got 'solo'"), UsageError);
}

TEST_CASE("a strategy inside two wrappers keeps its traits") {
  Solo solo;
  AnyStrategy inner = AnyStrategy::refer(solo);
  AnyStrategy outer = AnyStrategy::refer(inner);
  CHECK(!outer.reads_device_memory());
  CHECK(!outer.owns_weights());
}
