// SPDX-License-Identifier: MIT
// Runs without logical ranks, with shares of rows that follow given times: the gradient, the running statistics, the
// samples and the reports.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <tutti/nn/layers.hpp>
#include <tutti/train/detail/evaluation/logical_pass.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/train/run_log.hpp>

#include "data/temp_folder.hpp"
#include "shares_job.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

Graph net_without_norm() {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = b.global_avg_pool("pool", b.relu("relu1", nn::conv(b, "conv1", x, {.out = 4})));
  b.softmax_cross_entropy(nn::linear(b, "fc", x, 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

SharesJob job_of_rows() {
  return {.seconds = [](int rank, std::int64_t step) { return (step <= 20 ? rank == 0 : rank == 1) ? 3e-4 : 1e-4; },
          .shares = Shares::rows,
          .logical = 0,
          .epochs = 8,
          .make_net = net_without_norm};
}

double most_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  return most;
}

}  // namespace

TEST_CASE("with shares of rows, a net without batch norm trains as in one process, and sees each sample once") {
  SharesJob job = job_of_rows();
  const SharedResults one = job.go(1);
  CHECK(one.shared.empty());
  for (const int world : {2, 4}) {
    CAPTURE(world);
    const test::TempFolder folder;
    job.audit = folder.path().string();
    const SharedResults many = job.go(world);
    CHECK(most_difference(many.weights, one.weights) < 1e-5);
    check_each_sample_once(job.audit, job.epochs, static_cast<std::size_t>(world));
    REQUIRE(many.shared.size() >= 2);
    for (const SharesReport& r : many.shared) {
      CHECK(r.by_rows);
      CHECK(std::accumulate(r.shares.begin(), r.shares.end(), 0) == batch);
    }
    CHECK(many.shared.front().shares[0] == (world == 2 ? 4 : 1));
    CHECK(many.shared.back().shares[1] == (world == 2 ? 4 : 1));
    job.audit.clear();
    // The bits depend only on the shares.
    CHECK(job.go(world).bits == many.bits);
  }
  // The fast process has 12 rows in three micro-batches.
  job.micro_batch = 5;
  CHECK(most_difference(job.go(2).weights, one.weights) < 1e-5);
}

TEST_CASE("a run with shares of rows continues in the middle of an epoch, without losing or repeating a sample") {
  SharesJob job = job_of_rows();
  const SharedResults one = job.go(1);
  std::vector<std::byte> bits;
  for (int turn = 0; turn < 2; ++turn) {
    const test::TempFolder folder, audit;
    job.run = folder.path().string();
    job.audit = audit.path().string();
    for (const std::int64_t stop : {13, 0}) {
      job.stop_after = stop;
      const SharedResults part = job.go(2);
      CHECK(!part.shared.empty());
      if (stop > 0) continue;
      CHECK(most_difference(part.weights, one.weights) < 1e-5);
      if (turn > 0) CHECK(part.bits == bits);
      bits = part.bits;
    }
    check_each_sample_once(job.audit, job.epochs, 2);
  }
}

TEST_CASE("running statistics are the mean over all rows, also if a process has no row") {
  const auto after_a_step = [](auto& strategy, const std::vector<std::int32_t>& bounds) {
    CpuBackend backend{CpuOptions{1}};
    Trainer trainer(backend, strategy, net(), {.seed = 5});
    trainer.set_shares(bounds);
    Placement of{.global_batch = batch, .rank = strategy.rank(), .world = strategy.size()};
    of.bounds = bounds;
    const Synthetic images({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1});
    Loader train(images, {.placement = of, .seed = 9, .threads = 0});
    (void)trainer.step(train.next(), 0.1).wait();
    const Tensor<float> mean = trainer.parameter("bn1.running_mean");
    return std::vector<float>(mean.data(), mean.data() + mean.size());
  };
  Solo solo;
  const std::vector<float> one = after_a_step(solo, {});
  for (const std::vector<std::int32_t>& bounds : {std::vector<std::int32_t>{0, 12, 16}, {0, 10, 10, 16}}) {
    run_ranks(static_cast<int>(bounds.size()) - 1, [&](ThreadCommunicator& c) {
      AllReduce strategy(c);
      CHECK(most_difference(after_a_step(strategy, bounds), one) < 1e-6);
    });
  }
}

TEST_CASE("evaluations have equal shares while those of rows are not equal") {
  run_ranks(2, [&](ThreadCommunicator& c) {
    AllReduce strategy(c);
    CpuBackend backend{CpuOptions{1}};
    Trainer trainer(backend, strategy, net(), {.seed = 5});
    trainer.set_shares({0, 12, 16});
    const Synthetic images({.size = 33, .height = 8, .width = 8, .classes = 4, .seed = 1});
    Loader test(images, {.placement = {.global_batch = batch, .rank = c.rank(), .world = 2}, .one_pass = true});
    std::vector<std::int64_t> rows;
    const detail::LogicalPass pass(trainer, test);
    for (bool last = false; !last;) {
      const Batch& b = test.next();
      last = b.last_of_epoch;
      rows.push_back(b.count);
    }
    CHECK(rows == std::vector<std::int64_t>{8, 8, c.rank() == 0 ? 1 : 0});
  });
}

TEST_CASE("a process with more rows than fit into a micro-batch changes its running statistics once for each") {
  const std::vector<std::int32_t> bounds{0, 12, 16};
  const auto after_a_step = [&](auto& strategy, int rank, bool shared, std::int64_t batches) {
    CpuBackend backend{CpuOptions{1}};
    Trainer trainer(backend, strategy, net(), {.seed = 5, .micro_batch = 6});
    if (shared) trainer.set_shares(bounds);
    Placement of{.global_batch = batch, .rank = rank, .world = 2};
    of.bounds = bounds;
    const Synthetic images({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1});
    Loader train(images, {.placement = of, .seed = 9, .threads = 0});
    (void)trainer.step(train.next(), 0.1).wait();
    CHECK(trainer.counters().batches == batches);
    const Tensor<float> mean = trainer.parameter("bn1.running_mean");
    return std::vector<float>(mean.data(), mean.data() + mean.size());
  };
  Solo solo;
  std::vector<float> expected = after_a_step(solo, 0, false, 2);
  const std::vector<float> slow = after_a_step(solo, 1, false, 1);
  for (std::size_t i = 0; i < slow.size(); ++i) expected[i] = 0.75F * expected[i] + 0.25F * slow[i];
  run_ranks(2, [&](ThreadCommunicator& c) {
    AllReduce strategy(c);
    // All processes save the number of batches of 8 rows, those of equal shares.
    CHECK(most_difference(after_a_step(strategy, c.rank(), true, 2), expected) < 1e-6);
  });
}

TEST_CASE("shares of rows are reported as such, and a process without rows is named") {
  const test::TempFolder folder;
  RunLog log(folder.path(), 5, [](const std::string& w) { FAIL(w); });
  SharesJob job = job_of_rows();
  job.seconds = [](int rank, std::int64_t) { return rank == 1 ? 1.0 : 1e-4; };
  job.log = &log;
  const SharedResults two = job.go(2);
  REQUIRE(!two.shared.empty());
  const SharesReport& r = two.shared.front();
  CHECK(r.shares == std::vector<std::int32_t>{16, 0});
  CHECK_MESSAGE(r.note.find("computes nothing: one row takes it 1 s") != std::string::npos, r.note);
  const std::string lines = io::read_text_file(folder.path() / "log.jsonl", 1 << 20);
  CHECK_MESSAGE(lines.find("\"shares\":[16,0],\"of\":\"rows\"") != std::string::npos, lines);
  CHECK(shares_line(r).find("shares 16 0 of 16 rows; a step computes 0.0016 s") != std::string::npos);
}

TEST_CASE("shares of rows are refused with logical ranks, and with a batch for each worker") {
  CpuBackend backend{CpuOptions{1}};
  Solo solo;
  const Synthetic images({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1});
  FitOptions o;
  o.shares = Shares::rows;
  Trainer logical(backend, solo, net(), {.logical_ranks = 4});
  Loader of_logical(images, {.placement = {.global_batch = batch, .logical_ranks = 4}});
  CHECK_THROWS_WITH_AS(fit(logical, of_logical, nullptr, o), doctest::Contains("no logical ranks"), UsageError);
  Trainer plain(backend, solo, net(), {});
  Loader train(images, {.placement = {.global_batch = batch}});
  o.batch_per_worker = batch;
  CHECK_THROWS_WITH_AS(fit(plain, train, nullptr, o), doctest::Contains("does not follow the number"), UsageError);
}
