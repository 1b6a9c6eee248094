// SPDX-License-Identifier: MIT
// Steps with SAM: what they restore, and that they have the same bits on any number of processes.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>

#include "logical_job.hpp"
#include "strategy/broken_step.hpp"
#include "strategy/owned_weights.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

constexpr Sam sam{.rho = 0.3, .every = 2};

std::vector<std::byte> bytes(const void* from, std::size_t count) {
  const auto* const b = static_cast<const std::byte*>(from);
  return {b, b + count};
}
std::vector<std::byte> statistics(Trainer& t) {
  return bytes(t.executor().state_data(), t.executor().states().bytes());
}
std::vector<std::byte> gradients(Trainer& t) {
  return bytes(t.executor().gradient_data(), t.executor().parameters().bytes());
}

}  // namespace

TEST_CASE("a step with SAM restores the weights to the bit and counts its images once") {
  const Data data(12);
  CpuBackend backend({1});
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.sam = {.rho = 0.3}}), plain(backend, solo, small_net(true), {});
  const auto before = weights(t);
  const Metrics m = t.step(data.view(), 12, 0).wait().metrics;
  const Metrics same = plain.step(data.view(), 12, 0).wait().metrics;
  CHECK(weights(t) == before);
  CHECK(statistics(t) == statistics(plain));
  CHECK(t.counters() == plain.counters());
  // The loss is that of the weights, and the gradient that of the perturbed ones.
  CHECK(m.loss == same.loss);
  CHECK(m.rows == 12);
  CHECK(gradients(t) != gradients(plain));
}

TEST_CASE("SAM follows the number of the step, so a restored state repeats the steps to the bit") {
  const Data data(12);
  CpuBackend backend({1});
  Solo solo;
  const TrainerOptions with{.ema_decay = 0.9, .sam = sam}, without{.ema_decay = 0.9};
  Trainer t(backend, solo, small_net(true), with), plain(backend, solo, small_net(true), without);
  t.step(data.view(), 12, 0.1);
  plain.step(data.view(), 12, 0.1);
  CHECK(weights(t) == weights(plain));
  t.commit();
  for (int i = 0; i < 2; ++i) t.step(data.view(), 12, 0.1);
  plain.step(data.view(), 12, 0.1);
  plain.step(data.view(), 12, 0.1);
  const auto end = weights(t);
  CHECK(end != weights(plain));
  t.restore();
  for (int i = 0; i < 2; ++i) t.step(data.view(), 12, 0.1);
  CHECK(weights(t) == end);
}

TEST_CASE("micro-batches give the perturbation of the whole batch") {
  const Data data(12);
  CpuBackend backend({1});
  Solo solo;
  const std::vector<BatchView> thirds{data.view(0, 4), data.view(4, 9), data.view(9, 12)};
  Trainer whole(backend, solo, small_net(false), {.sam = {.rho = 0.3}}),
      cut(backend, solo, small_net(false), {.sam = {.rho = 0.3}}), plain(backend, solo, small_net(false), {});
  for (int i = 0; i < 3; ++i) {
    whole.step(data.view(), 12, 0.1);
    cut.step(thirds, 12, 0.1);
    plain.step(data.view(), 12, 0.1);
  }
  CHECK(norm_of_change(whole, weights(cut)) < 1e-5);
  CHECK(norm_of_change(whole, weights(plain)) > 1e-3);
}

TEST_CASE("bf16 and a scaled loss change the perturbation by their rounding only") {
  const Data data(12);
  CpuBackend backend({1});
  Solo solo;
  Trainer f32(backend, solo, small_net(true), {.sam = {.rho = 0.3}}),
      scaled(backend, solo, small_net(true), {.loss_scale = 256, .sam = {.rho = 0.3}}),
      bf16(backend, solo, small_net(true), {.compute = DType::bf16, .sam = {.rho = 0.3}}),
      plain(backend, solo, small_net(true), {});
  for (Trainer* t : {&f32, &scaled, &bf16, &plain}) t->step(data.view(), 12, 0.1);
  const auto other = norm_of_change(f32, weights(plain));
  CHECK(norm_of_change(f32, weights(scaled)) < 1e-5 * other);
  CHECK(norm_of_change(f32, weights(bf16)) < 0.1 * other);
}

TEST_CASE("each logical rank has a perturbation of its own, with the same bits on all worlds") {
  LogicalJob job;
  job.options.logical_ranks = 3;
  job.options.ema_decay = 0.9;
  job.options.clip_norm = 1;
  job.options.first_bucket_bytes = 1 << 8;
  job.options.bucket_bytes = 1 << 9;
  job.drop = 0.2;
  const LogicalResult plain = train_world(job, 1);
  job.options.sam = sam;
  for (const std::int64_t micro_batch : {0, 2})
    for (const DType compute : {DType::f32, DType::bf16}) {
      job.options.micro_batch = micro_batch;
      job.options.compute = compute;
      CAPTURE(micro_batch);
      CAPTURE(name_of(compute));
      const LogicalResult one = train_world(job, 1);
      CHECK(!(one == plain));
      CHECK(train_world(job, 1, 3) == one);
      CHECK(train_world(job, 2) == one);
      CHECK(train_world(job, 3) == one);
    }
}

TEST_CASE("the memory of SAM counts the sums of a logical rank's first passes") {
  CpuBackend backend({1});
  Solo solo;
  const auto gradients_of = [&](double rho, std::int64_t rows) {
    Trainer t(backend, solo, small_net(true), {.sam = {.rho = rho}, .micro_batch = 4, .logical_ranks = 2});
    return t.memory(rows, 4).gradients / t.executor().parameters().bytes();
  };
  CHECK(gradients_of(0, 8) == 2);
  CHECK(gradients_of(0.3, 4) == 2);
  CHECK(gradients_of(0.3, 8) == 3);
}

TEST_CASE("a step with SAM that fails at any piece leaves the state before it") {
  for (const int logical : {0, 6}) {
    TrainerOptions o = options_that_break();
    o.sam = sam;
    o.logical_ranks = logical;
    const auto at = [&](int piece, bool breaks) {
      std::vector<std::string> said(3);
      int pieces = 0;
      run_ranks(3, [&](ThreadCommunicator& c) {
        CpuBackend backend({1});
        Breaking strategy(c, breaks && c.rank() == 1 ? 4 : 0, piece);
        said[static_cast<std::size_t>(c.rank())] = break_a_step(backend, strategy, 2, breaks, 3, o);
        if (c.rank() == 0) pieces = strategy.pieces();
      });
      for (const std::string& s : said) CHECK(s == "");
      return pieces;
    };
    const int pieces = at(0, false);
    for (int piece = -2; piece < pieces; ++piece) {
      CAPTURE(logical);
      CAPTURE(piece);
      at(piece, true);
    }
  }
}

TEST_CASE("an error in the middle of the second pass leaves the weights before the step") {
  class Throwing : public AllReduce<ThreadCommunicator> {
   public:
    using AllReduce::AllReduce;
    Work reduce(const Piece& piece) {
      if (throws) fail<CommunicationError>("reduce", "a sum", "an error");
      return AllReduce::reduce(piece);
    }
    bool throws = false;
  };
  const Data data(12);
  run_ranks(2, [&](ThreadCommunicator& c) {
    CpuBackend backend({1});
    Throwing strategy(c);
    Trainer t(backend, strategy, small_net(true), {.sam = {.rho = 0.3}, .first_bucket_bytes = 64});
    const BatchView mine = c.rank() == 0 ? data.view(0, 6) : data.view(6, 12);
    t.step(mine, 12, 0.1);
    const auto before = logical_state(t);
    strategy.throws = true;
    CHECK_THROWS_AS(t.step(mine, 12, 0.1), CommunicationError);
    t.roll_back();
    CHECK(logical_state(t) == before);
  });
}

TEST_CASE("a perturbed loss that is not finite ends the run with the weights before the step") {
  const Data data(12);
  CpuBackend backend({1});
  Solo solo;
  // A perturbation so large that products of the weights overflow.
  Trainer t(backend, solo, small_net(false), {.sam = {.rho = 1e30}});
  const auto before = weights(t);
  CHECK_THROWS_AS(t.step(data.view(), 12, 0.1).wait(), NotFiniteError);
  CHECK(weights(t) == before);
  CHECK(t.counters().step == 0);
}

TEST_CASE("SAM refuses wrong numbers, and servers that own the weights, by name") {
  CpuBackend backend({1});
  Solo solo;
  const auto make = [&](Sam s) { Trainer(backend, solo, small_net(true), {.sam = s}); };
  CHECK_THROWS_WITH_AS(make({.rho = -1}), doctest::Contains("[SAM] expected a rho of 0 or more"), UsageError);
  CHECK_THROWS_WITH_AS(make({.rho = std::numeric_limits<double>::infinity()}), doctest::Contains("[SAM]"), UsageError);
  CHECK_THROWS_WITH_AS(make({.rho = 1, .every = 0}), doctest::Contains("1 step or more"), UsageError);
  TrainerOptions o = test::options(Sgd{});
  test::Server server(o, 1, 1, 8);
  test::Worker worker(server.owner, 0, 1);
  o.sam.rho = 0.1;
  CHECK_THROWS_WITH_AS(Trainer(backend, worker, test::net(), o), doctest::Contains("leave out --sam"), UsageError);
}
