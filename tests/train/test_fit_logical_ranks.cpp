// SPDX-License-Identifier: MIT
// The training loop and evaluations with logical ranks: all results are the same bits on any number of processes.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/evaluate_views.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/mistakes.hpp>

#include "comm/thread_ranks.hpp"
#include "data/temp_folder.hpp"
#include "fit_run.hpp"

using namespace tutti;
using namespace tutti::testing;
using test::contains;
using test::message_of;

namespace {

constexpr int logical = 4;

struct Everything : Recorder {
  std::optional<Mistakes> seen;
  void mistakes(const Mistakes& m) override { seen = m; }
};

// The results of a run.
struct Results {
  std::vector<std::byte> bits;
  std::vector<double> numbers;  // of reports and evaluations, in their order
  Counters counters;
  friend bool operator==(const Results&, const Results&) = default;
};

void add(std::vector<double>& to, const EvaluationReport& e) {
  for (const double v : {e.loss, e.top1, e.topk, static_cast<double>(e.images), e.metric.value_or(-1)}) to.push_back(v);
}

// A loss of its own: of any size, so that no rounding to a grid keeps it exact.
double tiny_metric(std::span<const float> logits, std::span<const std::int32_t> labels) {
  double sum = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) sum += 1e-12 * std::exp(static_cast<double>(logits[4 * i]));
  return sum;
}

struct How {
  int world = 1;
  std::int64_t stop_after = 0;  // steps of this call; 0: no limit
  std::string folder{};
  bool resumes = false;
  std::int64_t report_every = 1;
  int placed = logical;  // logical ranks of the sources before fit() places them
};

// Runs two epochs on so many processes, which are threads here.
Results run(const How& how) {
  Results result;
  const auto rank = [&](auto& strategy) {
    CpuBackend backend{CpuOptions{1 + how.world % 3}};
    Trainer trainer(backend, strategy, net(), {.ema_decay = 0.9, .seed = 5, .logical_ranks = logical});
    const Synthetic images({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true});
    const Synthetic held(
        {.size = 33, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true, .first = 1000});
    Placement of{.global_batch = batch, .rank = strategy.rank(), .world = strategy.size(), .logical_ranks = how.placed};
    Loader train(images, {.placement = of, .seed = 9, .threads = 1});
    of.global_batch = 3 * logical;
    Loader test(held, {.placement = of, .shuffle = false, .one_pass = true, .threads = 1});
    Everything heard;
    std::optional<Checkpoints> checkpoints;
    if (!how.folder.empty()) {
      checkpoints.emplace(how.folder, 2, io::Json::object());
      if (how.resumes) REQUIRE(checkpoints->resume(trainer, [](const std::string& w) { FAIL(w); }));
    }
    CoordinatorOptions duties{.listeners = {&heard}};
    if (checkpoints) duties.checkpoints = &*checkpoints;
    Coordinator coordinator(trainer, duties);
    FitOptions o{.epochs = 2, .global_batch = batch};
    // A schedule that follows the number of ranks would follow that of the processes.
    o.schedule = [](const SchedulePoint& p) { return 0.1 / p.world; };
    o.report_every = how.report_every;
    o.mistakes = true;
    o.metric = tiny_metric;
    std::int64_t steps = 0;
    o.stop_requested = [&] { return ++steps == how.stop_after; };
    fit(trainer, train, &test, coordinator, o);
    const EvaluationReport views = evaluate_views(trainer, test, test_views(1));
    trainer.commit();
    if (strategy.rank() != 0) return;
    for (const bool optimizer : {false, true})
      for (const auto& s : trainer.committed_tensors(optimizer))
        result.bits.insert(result.bits.end(), s.bytes.begin(), s.bytes.end());
    for (const StepReport& s : heard.steps)
      for (const double v : {static_cast<double>(s.step), s.train_loss, s.train_top1, s.lr})
        result.numbers.push_back(v);
    for (const EpochReport& e : heard.epochs) {
      for (const double v : {e.train_loss, e.train_top1, e.train_topk, static_cast<double>(e.skipped)})
        result.numbers.push_back(v);
      add(result.numbers, *e.test);
      add(result.numbers, *e.test_ema);
    }
    add(result.numbers, views);
    if (heard.seen) {
      result.numbers.insert(result.numbers.end(), heard.seen->confusion.begin(), heard.seen->confusion.end());
      for (const WrongImage& w : heard.seen->worst)
        for (const double v : {static_cast<double>(w.index), w.loss, w.sure}) result.numbers.push_back(v);
    }
    result.counters = trainer.counters();
  };
  if (how.world == 1) {
    Solo solo;
    rank(solo);
  } else {
    run_ranks(how.world, [&](ThreadCommunicator& c) {
      AllReduce strategy(c);
      rank(strategy);
    });
  }
  return result;
}

}  // namespace

TEST_CASE("a run with logical ranks gives the same bits and reports on one to four processes") {
  const Results one = run({});
  CHECK(one.counters.step == 10);
  CHECK(one.numbers.size() > 100);
  for (const int world : {2, 3, 4}) {
    CAPTURE(world);
    const Results many = run({.world = world});
    CHECK(many.bits == one.bits);
    CHECK(many.numbers == one.numbers);
    CHECK(many.counters == one.counters);
  }
  // fit() places sources that do not know the logical ranks yet.
  const Results placed = run({.world = 2, .placed = 0});
  CHECK(placed.bits == one.bits);
}

TEST_CASE("a run that stops within an epoch and continues on other processes has the reports of a whole run") {
  // The last report covers steps before and after the stop.
  constexpr std::int64_t every = 10;
  const Results whole = run({.report_every = every});
  for (const auto& worlds : std::vector<std::pair<int, int>>{{1, 3}, {4, 1}, {2, 3}}) {
    const int first = worlds.first, then = worlds.second;
    CAPTURE(first);
    CAPTURE(then);
    const test::TempFolder folder;
    (void)run({.world = first, .stop_after = 3, .folder = folder.path().string(), .report_every = every});
    const Results rest = run({.world = then, .folder = folder.path().string(), .resumes = true, .report_every = every});
    CHECK(rest.bits == whole.bits);
    CHECK(rest.counters == whole.counters);
    // The numbers of both epochs and of the last report.
    CHECK(rest.numbers == whole.numbers);
  }
}

TEST_CASE("evaluations give each logical rank its own rows, and a plain trainer evaluates as before") {
  CpuBackend backend{CpuOptions{1}};
  Solo solo;
  const Synthetic held({.size = 33, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true});
  Loader loader(held, {.placement = {.global_batch = 8}, .shuffle = false, .one_pass = true});
  std::vector<std::size_t> rows;
  const auto sizes = [&](int ranks) {
    rows.clear();
    Trainer t(backend, solo, net(), {.seed = 3, .logical_ranks = ranks});
    const EvaluationReport r = evaluate(t, loader, [&](std::span<const float>, std::span<const std::int32_t> labels) {
      rows.push_back(labels.size());
      return static_cast<double>(labels.size());
    });
    CHECK(r.images == 33);
    CHECK(r.metric == 1.0);
    return rows;
  };
  CHECK(sizes(0) == std::vector<std::size_t>{8, 8, 8, 8, 1});
  CHECK(sizes(3) == std::vector<std::size_t>{3, 3, 2, 3, 3, 2, 3, 3, 2, 3, 3, 2, 1});
}

TEST_CASE("a batch that follows the number of workers is refused with logical ranks") {
  CpuBackend backend{CpuOptions{1}};
  Solo solo;
  Trainer t(backend, solo, net(), {.logical_ranks = 2});
  const Synthetic images({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1});
  Loader train(images, {.placement = {.global_batch = batch}});
  const std::string said = message_of<UsageError>([&] { fit(t, train, nullptr, {.batch_per_worker = 8}); });
  CHECK_MESSAGE(contains(said, "a global batch that does not follow the number of workers, for logical ranks"), said);
}
