// SPDX-License-Identifier: MIT
// Runs with shares of logical ranks that follow given times: the bits, the samples and the reports.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/check_audit.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/train/run_log.hpp>

#include "comm/thread_ranks.hpp"
#include "data/temp_folder.hpp"
#include "fit_run.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

constexpr int logical = 6;
constexpr std::int64_t epochs = 12;  // of 5 steps

struct Heard : Recorder {
  std::vector<SharesReport> shared;
  void shares(const SharesReport& r) override { shared.push_back(r); }
};

struct Results {
  std::vector<std::byte> bits;
  std::vector<double> numbers;
  std::vector<SharesReport> shared;
};

using Seconds = std::function<double(int rank, std::int64_t step)>;  // for one logical rank

Results run(int world, const Seconds& seconds, const std::string& audit = {}, FitListener* log = nullptr) {
  Results result;
  const auto rank = [&](auto& strategy) {
    const int me = strategy.rank();
    CpuBackend backend{CpuOptions{1}};
    Trainer trainer(backend, strategy, net(), {.ema_decay = 0.9, .seed = 5, .logical_ranks = logical});
    const Synthetic images({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true});
    const Synthetic held(
        {.size = 33, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true, .first = 99});
    Placement of{.global_batch = batch, .rank = me, .world = strategy.size(), .logical_ranks = logical};
    Loader train(images, {.placement = of, .seed = 9, .threads = 1 + me % 2});
    Loader test(held, {.placement = of, .shuffle = false, .one_pass = true, .threads = 1});
    Heard heard;
    CoordinatorOptions duties{.listeners = {&heard}, .audit = audit};
    if (log != nullptr) duties.listeners.push_back(log);
    Coordinator coordinator(trainer, duties);
    FitOptions o{.epochs = epochs, .global_batch = batch};
    o.shares = Shares::measured;
    o.share_seconds = [&](std::int64_t step, std::int64_t ranks) {
      return static_cast<double>(ranks) * seconds(me, step);
    };
    fit(trainer, train, &test, coordinator, o);
    trainer.commit();
    if (me == 0) {
      for (const bool optimizer : {false, true})
        for (const auto& s : trainer.committed_tensors(optimizer))
          result.bits.insert(result.bits.end(), s.bytes.begin(), s.bytes.end());
      for (const EpochReport& e : heard.epochs)
        for (const double v : {e.train_loss, e.train_top1, e.test->loss, e.test->top1, e.test_ema->loss})
          result.numbers.push_back(v);
      result.shared = heard.shared;
    }
  };
  if (world == 1) {
    Solo solo;
    rank(solo);
  } else {
    run_ranks(world, [&](ThreadCommunicator& c) {
      AllReduce strategy(c);
      rank(strategy);
    });
  }
  return result;
}

}  // namespace

TEST_CASE("shares that follow changing times give the bits and reports of one process, and each sample once") {
  const Results one = run(1, [](int, std::int64_t) { return 1e-3; });
  CHECK(one.shared.empty());
  for (const int world : {2, 4}) {
    CAPTURE(world);
    const test::TempFolder folder;
    // The slow process is another one in the second half.
    const Results many = run(
        world, [&](int rank, std::int64_t step) { return (step <= 30 ? rank == 0 : rank == 1) ? 3e-3 : 1e-3; },
        folder.path().string());
    CHECK(many.bits == one.bits);
    CHECK(many.numbers == one.numbers);
    REQUIRE(many.shared.size() >= 2);
    std::vector<std::string> files;
    for (const auto& e : std::filesystem::directory_iterator(folder.path())) files.push_back(e.path().string());
    CHECK(files.size() == static_cast<std::size_t>(world));
    for (std::int64_t e = 0; e < epochs; ++e) {
      const AuditResult r = check_audit(files, e, samples);
      CHECK(r.missing == 0);
      CHECK(r.repeated == 0);
    }
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
  const Results one = run(1, [](int, std::int64_t) { return 1e-3; });
  const test::TempFolder folder;
  RunLog log(folder.path(), 5, [](const std::string& w) { FAIL(w); });
  const Results many = run(
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
