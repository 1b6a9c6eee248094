// SPDX-License-Identifier: MIT
// A job with logical ranks has the same bits on any number of processes.
#include <doctest/doctest.h>

#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/engine/reference/reference.hpp>

#include "logical_job.hpp"
#include "strategy/broken_step.hpp"
#include "strategy/changing_strategy.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

LogicalJob job_of(int logical_ranks, AnyOptimizer optimizer = Sgd{0.9, true}) {
  LogicalJob j;
  j.options.logical_ranks = logical_ranks;
  j.options.optimizer = std::move(optimizer);
  j.options.ema_decay = 0.9;
  j.options.clip_norm = 1;
  j.options.first_bucket_bytes = 1 << 8;
  j.options.bucket_bytes = 1 << 9;
  return j;
}

// All worlds that can run the job.
void check_worlds(const LogicalJob& job) {
  const LogicalResult one = train_world(job, 1);
  for (int world = 2; world <= job.options.logical_ranks; ++world) {
    CAPTURE(world);
    CHECK(train_world(job, world) == one);
  }
}

std::vector<float> values(const LogicalResult& r, std::size_t count) {
  std::vector<float> v(count);
  std::memcpy(v.data(), r.state.data(), count * sizeof(float));
  return v;
}

void scale(Trainer& t, const std::string& name, float factor) {
  auto* const w = static_cast<float*>(t.executor().parameter_data());
  const Slice& s = *t.executor().parameters().find(name);
  for (std::size_t i = 0; i < s.count; ++i) w[s.offset + i] *= factor;
  t.executor().parameters_changed();
}
// f32 can hold the product of the weights, and therefore the loss. It cannot hold the product of all except the first
// one, and therefore not the gradient of the first one.
void overflow(Trainer& t) {
  scale(t, "conv1.weight", 1e-30F);
  scale(t, "conv2.weight", 1e20F);
  scale(t, "fc.weight", 1e25F);
}

}  // namespace

TEST_CASE("worlds, threads and sizes of buckets do not change the bits") {
  LogicalJob job = job_of(5);
  const LogicalResult one = train_world(job, 1);
  for (const std::size_t bucket : {std::size_t{64}, std::size_t{1} << 10, std::size_t{16} << 20}) {
    job.options.bucket_bytes = bucket;
    job.options.first_bucket_bytes = bucket;
    for (int world = 1; world <= 5; ++world)
      for (const int threads : {1, 2, 5, 16}) {
        if (world > 2 && threads > 5) continue;
        CAPTURE(bucket);
        CAPTURE(world);
        CAPTURE(threads);
        CHECK(train_world(job, world, threads) == one);
      }
  }
  // They are those of the job, not constant.
  job.lr = 0.11;
  CHECK(!(train_world(job, 2) == one));
}

TEST_CASE("all optimizers have the same bits on all worlds, in f32 and bf16") {
  for (const DType compute : {DType::f32, DType::bf16})
    for (const AnyOptimizer& optimizer :
         {AnyOptimizer(Sgd{}), AnyOptimizer(Adamw{}), AnyOptimizer(Lars{}), AnyOptimizer(Larc{})}) {
      LogicalJob job = job_of(4, optimizer);
      job.options.compute = compute;
      job.lr = 0.02;
      CAPTURE(name_of(compute));
      check_worlds(job);
    }
}

TEST_CASE("micro-batches are cut from the rows of each logical rank") {
  LogicalJob job = job_of(3);
  job.rows = {14, 14, 7, 1};
  const LogicalResult whole = train_world(job, 1);
  job.options.micro_batch = 2;
  check_worlds(job);
  CHECK(!(train_world(job, 1) == whole));  // batch norm sees other batches
  // Without batch norm they change only the order of sums.
  job.norm = false;
  check_worlds(job);
}

TEST_CASE("dropouts have the same bits on all worlds, and with the rows in micro-batches") {
  LogicalJob job = job_of(4);
  const LogicalResult kept = train_world(job, 1);
  job.drop = 0.3;
  const LogicalResult dropped = train_world(job, 1);
  CHECK(!(dropped == kept));
  check_worlds(job);
  for (const int threads : {2, 5}) CHECK(train_world(job, 2, threads) == dropped);
  job.options.seed = 2;  // initial weights too
  CHECK(!(train_world(job, 1) == dropped));
  // Without batch norm, micro-batches change only the order of sums.
  job.norm = false;
  const auto whole = train_world(job, 1).metrics;
  job.options.micro_batch = 1;
  const auto parts = train_world(job, 2).metrics;
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(parts[i] == doctest::Approx(whole[i]).epsilon(1e-5));
}

TEST_CASE("one logical rank, and fewer rows than logical ranks") {
  check_worlds(job_of(1));
  LogicalJob job = job_of(4);
  job.rows = {1, 3, 2, 4, 1};
  check_worlds(job);
}

TEST_CASE("the result is that of as many plain ranks, but for the rounding of sums") {
  for (const bool norm : {true, false}) {
    LogicalJob job = job_of(4);
    job.norm = norm;
    job.rows = {16, 16, 16, 16};
    const LogicalResult logical = train_world(job, 2);
    job.options.logical_ranks = 0;
    const LogicalResult plain = train_world(job, 4);
    CpuBackend backend({1});
    Solo solo;
    Trainer t(backend, solo, small_net(norm), job.options);
    const std::size_t n = t.executor().parameters().numel() + t.executor().states().numel();
    const auto a = values(logical, n), b = values(plain, n);
    double most = 0;
    for (std::size_t i = 0; i < n; ++i)
      most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    CHECK(most < 2e-5);
    CHECK(most > 0);
    for (std::size_t i = 0; i < logical.metrics.size(); ++i)
      CHECK(logical.metrics[i] == doctest::Approx(plain.metrics[i]).epsilon(1e-5));
  }
}

TEST_CASE("gradients that grow suddenly repeat the step on all processes") {
  // The rows by which gradients are divided.
  const auto run = [&](int world, std::vector<std::int64_t> global_rows) {
    LogicalResult zero;
    const auto train = [&](auto& backend, auto& strategy, std::int64_t& pieces) {
      TrainerOptions o = job_of(4).options;
      o.clip_norm = 0;
      Trainer t(backend, strategy, small_net(true), o);
      const Part mine = Placement{.rank = t.strategy().rank(), .world = world, .logical_ranks = 4}.logical();
      LogicalResult r;
      for (const std::int64_t rows : global_rows) {
        const Data data(12);
        std::vector<BatchView> views;
        for (std::int64_t v = mine.begin; v < mine.begin + mine.count; ++v)
          views.push_back(data.view(3 * v, 3 * v + 3));
        const std::int64_t before = pieces;
        const Metrics m = t.step(views, rows, 1e-4).wait().metrics;
        r.metrics.insert(r.metrics.end(), {m.loss, m.rows});
        r.pieces.push_back(pieces - before);
      }
      CHECK(t.counters().step == static_cast<std::int64_t>(global_rows.size()));
      r.metrics.push_back(t.take_metrics().rows / 4);
      r.state = logical_state(t);
      return r;
    };
    std::int64_t none = 0;
    if (world == 1) {
      CpuBackend backend({1});
      Solo solo;
      return train(backend, solo, none);
    }
    std::vector<LogicalResult> all(static_cast<std::size_t>(world));
    run_ranks(world, [&](ThreadCommunicator& c) {
      CpuBackend backend({1});
      Counting strategy(c);
      all[static_cast<std::size_t>(c.rank())] = train(backend, strategy, strategy.pieces);
    });
    for (const LogicalResult& r : all) {
      CHECK(r.state == all[0].state);
      CHECK(r.pieces == all[0].pieces);
    }
    return all[0];
  };
  const std::vector<std::int64_t> rows{12 << 10, 12 << 10, 12, 12};
  const LogicalResult one = run(1, rows);
  CHECK(one.metrics.back() == 12);  // the rows of a logical rank in four steps, each counted once
  for (const int world : {2, 3, 4}) {
    CAPTURE(world);
    const LogicalResult some = run(world, rows);
    CHECK(some.state == one.state);
    REQUIRE(some.pieces.size() == 4);
    CHECK(some.pieces[0] == 2 * some.pieces[1]);  // the first step finds the units
    CHECK(some.pieces[2] == 2 * some.pieces[1]);  // the gradients are 2^10 times larger
    CHECK(some.pieces[3] == some.pieces[1]);
  }
}

TEST_CASE("a step without finite gradients changes nothing and ends the run on all processes") {
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    const auto check = [&](auto& strategy) {
      CpuBackend backend({1});
      LogicalJob job = job_of(3);
      job.options.loss_scale = 4;
      Trainer t(backend, strategy, small_net(false), job.options);
      overflow(t);
      const auto before = logical_state(t);
      CHECK_THROWS_WITH_AS(run_steps(t, job, 0, 1), doctest::Contains("infinite or NaN gradients at a loss scale of 4"),
                           NotFiniteError);
      CHECK(logical_state(t) == before);
    };
    if (world == 1) {
      Solo solo;
      check(solo);
    } else {
      run_ranks(world, [&](ThreadCommunicator& c) {
        AllReduce strategy(c);
        check(strategy);
      });
    }
  }
}

TEST_CASE("a loss that is not finite on one process ends the run on all") {
  run_ranks(3, [&](ThreadCommunicator& c) {
    CpuBackend backend({1});
    AllReduce strategy(c);
    const LogicalJob job = job_of(5);
    Trainer t(backend, strategy, small_net(true), job.options);
    if (c.rank() == 1) {
      static_cast<float*>(t.executor().parameter_data())[0] = std::numeric_limits<float>::quiet_NaN();
      t.executor().parameters_changed();
    }
    const auto before = logical_state(t);
    CHECK_THROWS_WITH_AS(run_steps(t, job, 0, 1),
                         doctest::Contains(c.rank() == 1 ? "got nan" : "a loss on another rank"), NotFiniteError);
    CHECK(logical_state(t) == before);
  });
}

TEST_CASE("a dynamic loss scale skips the same steps on all worlds") {
  LogicalJob job = job_of(4);
  job.options.dynamic_loss_scale = true;
  job.rows = {8, 8, 8, 8, 8, 8};
  const auto run = [&](auto& strategy) {
    CpuBackend backend({1});
    Trainer t(backend, strategy, small_net(true), job.options);
    scale(t, "fc.weight", 1024);  // so that gradients are large
    t.counters().scale_exponent = 126;
    LogicalResult r;
    r.metrics = run_steps(t, job, 0, job.rows.size());
    CHECK(t.counters().step == 6);
    CHECK(t.counters().scale_exponent < 126);
    r.state = logical_state(t);
    return r;
  };
  Solo solo;
  const LogicalResult one = run(solo);
  for (const int world : {2, 4})
    run_ranks(world, [&](ThreadCommunicator& c) {
      AllReduce strategy(c);
      CHECK(run(strategy) == one);
    });
}

TEST_CASE("what cannot keep the promise is refused by name") {
  CpuBackend backend({1});
  Solo solo;
  const auto make = [&](TrainerOptions o) { Trainer(backend, solo, small_net(true), std::move(o)); };
  CHECK_THROWS_WITH_AS(make({.logical_ranks = -1}), doctest::Contains("[logical ranks] expected 0 to"), UsageError);
  ReferenceBackend reference;
  CHECK_THROWS_WITH_AS(Trainer(reference, solo, small_net(true), {.compute = DType::f64, .logical_ranks = 2}),
                       doctest::Contains("[logical ranks] expected f32 or bf16, got f64"), UsageError);
  run_ranks(2, [&](ThreadCommunicator& c) {
    AllReduce strategy(c);
    CpuBackend own({1});
    CHECK_THROWS_WITH_AS(Trainer(own, strategy, small_net(true), {.logical_ranks = 1}),
                         doctest::Contains("at most 1 processes"), UsageError);
    CHECK_THROWS_WITH_AS(Trainer(own, strategy, small_net(true), {.logical_ranks = 2 + c.rank()}),
                         doctest::Contains("logical ranks"), UsageError);
  });
  // A batch that was divided in another way, and parts of another number.
  Trainer t(backend, solo, small_net(true), {.logical_ranks = 3});
  const Data data(12);
  Batch half = logical_batch(data, Placement{.rank = 0, .world = 2}, 12);
  CHECK_THROWS_WITH_AS(t.step(half, 0.1), doctest::Contains("12 of 12 rows"), UsageError);
  CHECK_THROWS_WITH_AS(t.step(data.view(), 12, 0.1), doctest::Contains("3 parts"), UsageError);
}

TEST_CASE("shares that change with each step do not change the bits") {
  LogicalJob job = job_of(5);
  job.drop = 0.3;
  job.options.micro_batch = 2;
  const LogicalResult one = train_world(job, 1);
  job.shares = {{0, 4, 5}, {0, 0, 5}, {}, {0, 5, 5}, {0, 1, 5}};
  CHECK(train_world(job, 2) == one);
  job.shares = {{0, 1, 4, 5}, {0, 5, 5, 5}, {0, 2, 2, 5}};
  for (const int threads : {1, 3}) CHECK(train_world(job, 3, threads) == one);
  CpuBackend backend({1});
  Solo solo;
  Trainer t(backend, solo, small_net(true), job.options);
  CHECK_THROWS_AS(t.set_shares({0, 2, 5}), UsageError);
  CHECK_NOTHROW(t.set_shares({0, 5}));
  CHECK(t.placement().logical().count == 5);
  t.reform();
  CHECK(t.placement().bounds.empty());
}
