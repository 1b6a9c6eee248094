// SPDX-License-Identifier: MIT
// Runs with shares of logical ranks that follow given times: the bits, the samples and the reports.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/train/run_log.hpp>

#include "comm/thread_ranks.hpp"
#include "data/temp_folder.hpp"
#include "shares_job.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

constexpr int logical = 6;
constexpr std::int64_t epochs = 12;  // of 5 steps

SharedResults run(int world, const std::function<double(int, std::int64_t)>& seconds, const std::string& audit = {},
                  FitListener* log = nullptr) {
  return SharesJob{.seconds = seconds, .logical = logical, .epochs = epochs, .audit = audit, .log = log}.go(world);
}

}  // namespace

TEST_CASE("shares that follow changing times give the bits and reports of one process, and each sample once") {
  const SharedResults one = run(1, [](int, std::int64_t) { return 1e-3; });
  CHECK(one.shared.empty());
  for (const int world : {2, 4}) {
    CAPTURE(world);
    const test::TempFolder folder;
    // The slow process is another one in the second half.
    const SharedResults many = run(
        world, [&](int rank, std::int64_t step) { return (step <= 30 ? rank == 0 : rank == 1) ? 3e-3 : 1e-3; },
        folder.path().string());
    CHECK(many.bits == one.bits);
    CHECK(many.numbers == one.numbers);
    REQUIRE(many.shared.size() >= 2);
    check_each_sample_once(folder.path().string(), epochs, static_cast<std::size_t>(world));
    // 8 full steps: every fifth one is short, and the first one does not count.
    const SharesReport& first = many.shared.front();
    CHECK(first.step <= 10);
    CHECK(first.shares.front() == 1);
    CHECK(first.shares.size() == static_cast<std::size_t>(world));
    CHECK(first.seconds.front() == doctest::Approx(3e-3));
    CHECK(first.seconds.back() == doctest::Approx(1e-3));
    CHECK(first.before == doctest::Approx(world == 2 ? 9e-3 : 6e-3));
    CHECK(first.after == doctest::Approx(world == 2 ? 5e-3 : 3e-3));
    const SharesReport& last = many.shared.back();
    CHECK(last.shares[1] == 1);
    CHECK(last.step <= 55);
  }
}

TEST_CASE("a process without logical ranks takes part in steps and evaluations, and is named with its host") {
  const SharedResults one = run(1, [](int, std::int64_t) { return 1e-3; });
  const test::TempFolder folder;
  RunLog log(folder.path(), 5, [](const std::string& w) { FAIL(w); });
  const SharedResults many = run(
      3, [](int rank, std::int64_t) { return rank == 2 ? 1.0 : 1e-3; }, {}, &log);
  CHECK(many.bits == one.bits);
  CHECK(many.numbers == one.numbers);
  REQUIRE(!many.shared.empty());
  const SharesReport& r = many.shared.front();
  CHECK(r.shares == std::vector<std::int32_t>{3, 3, 0});
  CHECK_MESSAGE(r.note.starts_with("rank 2 (host "), r.note);
  CHECK_MESSAGE(r.note.find("computes nothing: one logical rank takes it 1 s, a whole step takes the others 0.003 s") !=
                    std::string::npos,
                r.note);
  const std::string lines = io::read_text_file(folder.path() / "log.jsonl", 1 << 20);
  CHECK_MESSAGE(lines.find("\"event\":\"shares\",\"step\":") != std::string::npos, lines);
  CHECK_MESSAGE(
      lines.find("\"shares\":[3,3,0],\"seconds\":[0.001,0.001,1.0],\"before\":2.0,\"after\":0.003,\"note\":") !=
          std::string::npos,
      lines);
  std::string shown;
  ProgressDisplay display({.write = [&](std::string_view text) { shown += text; }});
  display.shares(r);
  CHECK_MESSAGE(
      shown.starts_with("after step " + std::to_string(r.step) +
                        ": shares 3 3 0 of 6 logical ranks; a step computes 0.003 s, before 2 s\nnote: rank 2"),
      shown);
}

TEST_CASE("measured shares without logical ranks are refused") {
  CpuBackend backend{CpuOptions{1}};
  Solo solo;
  Trainer t(backend, solo, net(), {});
  const Synthetic images({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1});
  Loader train(images, {.placement = {.global_batch = batch}});
  FitOptions o;
  o.shares = Shares::measured;
  CHECK_THROWS_WITH_AS(fit(t, train, nullptr, o), doctest::Contains("[fit] expected logical ranks"), UsageError);
}

TEST_CASE("a run with measured shares that stops in an epoch and continues has the bits of one that did not stop") {
  SharesJob job{
      .seconds = [](int rank, std::int64_t step) { return (step <= 30 ? rank == 0 : rank == 1) ? 3e-3 : 1e-3; },
      .logical = logical,
      .epochs = epochs};
  const SharedResults whole = job.go(2);
  REQUIRE(whole.shared.size() >= 2);
  const test::TempFolder folder, audit;
  job.run = folder.path().string();
  job.audit = audit.path().string();
  std::vector<double> numbers;
  SharedResults part;
  // The first stop comes after the first change of the shares; the second one, after the second change, in an epoch
  // that another number of processes continues.
  for (const auto& [stop, world] : {std::pair{13, 2}, {48, 2}, {0, 3}}) {
    CAPTURE(stop);
    job.stop_after = stop;
    part = job.go(world);
    CHECK(!part.shared.empty());
    numbers.insert(numbers.end(), part.numbers.begin(), part.numbers.end());
  }
  CHECK(part.bits == whole.bits);
  CHECK(numbers == whole.numbers);
  check_each_sample_once(job.audit, epochs, 3);
}

TEST_CASE("a trainer has equal shares again after a run with measured ones, also with the same loader") {
  const auto job = [](auto& strategy) {
    const int me = strategy.rank();
    CpuBackend backend{CpuOptions{1}};
    Trainer trainer(backend, strategy, net(), {.seed = 5, .logical_ranks = logical});
    const Synthetic images({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true});
    const LoaderOptions of{
        .placement = {.global_batch = batch, .rank = me, .world = strategy.size(), .logical_ranks = logical},
        .seed = 9,
        .threads = 1};
    Loader first(images, of), second(images, of);
    std::size_t changes = 0;
    std::int64_t end = 0;
    for (Loader* train : {&first, &first, &second, &second})
      for (const Shares shares : {Shares::measured, Shares::equal}) {
        Heard heard;
        Coordinator coordinator(trainer, {.listeners = {&heard}});
        FitOptions o{.epochs = end += 3, .global_batch = batch};
        o.shares = shares;
        o.share_seconds = [&](std::int64_t, std::int64_t ranks) {
          return static_cast<double>(ranks * (me == 0 ? 3 : 1));
        };
        fit(trainer, *train, nullptr, coordinator, o);
        CHECK(trainer.placement().bounds.empty());
        changes += heard.shared.size();
      }
    if (me == 0) CHECK(changes == (strategy.size() == 1 ? 0U : 4U));
    trainer.commit();
    std::vector<std::byte> bits;
    for (const auto& s : trainer.committed_tensors(false)) bits.insert(bits.end(), s.bytes.begin(), s.bytes.end());
    return bits;
  };
  Solo solo;
  const std::vector<std::byte> one = job(solo);
  run_ranks(2, [&](ThreadCommunicator& c) {
    AllReduce strategy(c);
    const std::vector<std::byte> bits = job(strategy);
    if (c.rank() == 0) CHECK(bits == one);
  });
}
