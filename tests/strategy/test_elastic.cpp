// SPDX-License-Identifier: MIT
// Tests a job with members that join, leave and die while it trains: every sample is seen once per epoch, and the
// result is that of one process.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/data/check_audit.hpp>

#include "data/temp_folder.hpp"
#include "elastic_job.hpp"

using namespace tutti;
using testing::ElasticJob;

namespace {

void slowly() { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }

std::vector<double> weights_of_one() {
  static const std::vector<double> weights = [] {
    ElasticJob job(1, {}, [](ElasticJob&, std::size_t, const FitStep&) {});
    return job.run().at(0).weights;
  }();
  return weights;
}

void require_same(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  CHECK(most < 1e-9);
}

void require_every_sample_once(const std::string& folder, std::int64_t epochs) {
  std::vector<std::string> files;
  for (const auto& e : std::filesystem::directory_iterator(folder)) files.push_back(e.path().string());
  for (std::int64_t e = 0; e < epochs; ++e) {
    CAPTURE(e);
    const AuditResult r = check_audit(files, e, ElasticJob::samples);
    CHECK(r.missing == 0);
    CHECK(r.repeated == 0);
  }
}

// Checks that all members except the victim finished with the same weights.
void require_survived(const std::vector<ElasticJob::Ended>& ended, std::size_t victim, const std::string& folder) {
  for (std::size_t i = 0; i < ended.size(); ++i) {
    CHECK(ended[i].error == "");
    CHECK(ended[i].killed == (i == victim));
    if (i == victim) continue;
    CHECK(ended[i].steps == 4 * ElasticJob::steps_an_epoch);
    require_same(ended[i].weights, weights_of_one());
  }
  require_every_sample_once(folder, 4);
}

}  // namespace

TEST_CASE("a job that begins with one member grows and shrinks when members join and leave") {
  const test::TempFolder folder;
  ElasticJob job(1, {}, [](ElasticJob& j, std::size_t me, const FitStep& s) {
    slowly();
    if (me == 0 && (s.step == 5 || s.step == 12)) j.join();
    if (me == 1 && s.step == 55) j.ask_to_leave(0);
    if (me == 2 && s.step == 65) j.ask_to_leave(1);
  });
  job.audit = folder.path();
  const auto ended = job.run();
  REQUIRE(ended.size() == 3);
  for (const auto& e : ended) CHECK(e.error == "");
  CHECK(ended[0].left);
  CHECK(ended[1].left);
  CHECK_FALSE(ended[2].left);
  CHECK(ended[2].steps == 4 * ElasticJob::steps_an_epoch);
  require_same(ended[2].weights, weights_of_one());
  require_every_sample_once(folder.path(), 4);
}

TEST_CASE("a job survives the death of any member, including the first one") {
  for (std::size_t victim = 0; victim < 3; ++victim)
    for (const std::int64_t step : {1, 20, 33}) {
      CAPTURE(victim);
      CAPTURE(step);
      const test::TempFolder folder;
      ElasticJob job(3, {}, [=](ElasticJob&, std::size_t me, const FitStep& s) {
        if (me == victim && s.step == step) throw testing::Killed{};
      });
      job.audit = folder.path();
      require_survived(job.run(), victim, folder.path());
    }
}

TEST_CASE("shares that follow changing speeds keep the bits and samples, while members join, leave and die") {
  const auto with_shares = [](ElasticJob& job) {
    job.logical_ranks = 8;
    job.seconds_of_rank = [](std::size_t member, std::int64_t step) {
      return 1e-3 * static_cast<double>(1 + (member + static_cast<std::size_t>(step) / 18) % 3);
    };
  };
  ElasticJob alone(1, {}, [](ElasticJob&, std::size_t, const FitStep&) {});
  with_shares(alone);
  const std::vector<double> weights = alone.run().at(0).weights;
  CHECK(alone.share_reports == 0);
  for (const std::size_t victim : {std::size_t{0}, std::size_t{2}}) {
    const test::TempFolder folder;
    ElasticJob job(3, {}, [=](ElasticJob& j, std::size_t me, const FitStep& s) {
      slowly();
      if (me == 1 && s.step == 12) j.join();
      if (me == victim && s.step == 33) throw testing::Killed{};
      if (me == 1 && s.step == 50) j.ask_to_leave(3);
    });
    with_shares(job);
    job.audit = folder.path();
    const auto ended = job.run();
    for (std::size_t i = 0; i < ended.size(); ++i) {
      CHECK(ended[i].error == "");
      CHECK(ended[i].killed == (i == victim));
      if (i == victim || ended[i].left) continue;
      CHECK(ended[i].steps == 4 * ElasticJob::steps_an_epoch);
      CHECK(ended[i].weights == weights);
    }
    CHECK(job.share_reports >= 4);
    require_every_sample_once(folder.path(), 4);
  }
}

TEST_CASE("a function creates the data sources for each number of ranks: 1, then 3, then 2") {
  const test::TempFolder folder;
  ElasticJob job(1, {}, [](ElasticJob& j, std::size_t me, const FitStep& s) {
    slowly();
    if (me == 0 && s.step == 5) {
      j.join();
      j.join();
    }
    if (me == 1 && s.step == 60) j.ask_to_leave(0);
  });
  job.audit = folder.path();
  job.makes_sources = true;
  const auto ended = job.run();
  REQUIRE(ended.size() == 3);
  for (const auto& e : ended) CHECK(e.error == "");
  CHECK(ended[0].left);
  require_same(ended[1].weights, weights_of_one());
  require_every_sample_once(folder.path(), 4);
  const std::set<int> sizes = job.sizes();
  for (const int n : {1, 2, 3}) CHECK(sizes.contains(n));
}

TEST_CASE("no membership change waits for a plan: plans for one more and one fewer member already exist") {
  // With micro-batches of at most 5 rows, or with all rows of a rank at once.
  for (const std::int64_t micro_batch : {5, 0}) {
    CAPTURE(micro_batch);
    struct Seen {
      int size;
      std::size_t plans;
    };
    std::mutex mutex;
    std::map<std::size_t, std::vector<Seen>> seen;
    ElasticJob job(2, {}, [](ElasticJob& j, std::size_t me, const FitStep& s) {
      slowly();
      if (me == 0 && s.step == 12) j.join();
      if (me == 1 && s.step == 60) j.ask_to_leave(1);
      if (me == 2 && s.step == 75) throw testing::Killed{};
    });
    job.behind_step = [&](std::size_t me, Trainer& t) {
      const std::lock_guard lock(mutex);
      seen[me].push_back({t.strategy().size(), t.executor().plans()});
    };
    job.epochs = 5;
    job.micro_batch = micro_batch;
    const auto ended = job.run();
    for (const auto& e : ended) CHECK(e.error == "");
    REQUIRE(seen.size() == 3);
    std::size_t changes = 0, most = 0;
    for (const auto& [me, steps] : seen)
      for (std::size_t i = 1; i < steps.size(); ++i) {
        most = std::max(most, steps[i].plans);
        if (steps[i].size == steps[i - 1].size) continue;
        ++changes;
        const std::size_t worker = me, size = steps[i].size;  // clang 14 cannot capture a structured binding
        CAPTURE(worker);
        CAPTURE(size);
        CHECK(steps[i].plans == steps[i - 1].plans);
      }
    CHECK(changes >= 4);
    CHECK(most < 12);
  }
}

TEST_CASE("the batch follows the number of workers, the rate changes gradually, each sample is seen once per epoch") {
  for (const bool makes : {false, true}) {
    CAPTURE(makes);
    const test::TempFolder folder;
    std::mutex mutex;
    std::map<std::int64_t, double> rates;
    std::map<std::int64_t, std::int64_t> images;
    ElasticJob job(1, {}, [&](ElasticJob& j, std::size_t me, const FitStep& s) {
      slowly();
      {
        const std::lock_guard lock(mutex);
        rates[s.step] = s.lr;
        images[s.step] += s.own_images;
      }
      if (me == 0 && s.step == 25) j.join();
    });
    job.audit = folder.path();
    job.batch_per_worker = ElasticJob::global_batch;
    job.ramp_steps = 4;
    job.makes_sources = makes;
    // The rate falls to zero over the images of the run, whatever its number of steps.
    job.rate = schedule::Poly(0.05, {.power = 1, .end = 0});
    const auto ended = job.run();
    REQUIRE(ended.size() == 2);
    for (const auto& e : ended) CHECK(e.error == "");
    require_every_sample_once(folder.path(), 4);
    std::int64_t seen = 0, first = 0;
    for (const auto& [step, n] : images) {
      if (n > ElasticJob::global_batch && first == 0) first = step;
      // With the batch at the beginning of the run, an epoch has 20 steps, of which the last one is short.
      const std::int64_t epoch = seen / ElasticJob::samples, into = seen % ElasticJob::samples;
      const double done = static_cast<double>(epoch * 20 + into / ElasticJob::global_batch) / 80;
      const double factor = first == 0 ? 1 : std::min(2.0, 1 + 0.25 * static_cast<double>(step - first));
      const std::int64_t at = step;
      CAPTURE(at);
      CHECK(rates[step] == doctest::Approx(0.05 * (1 - done) * factor));
      seen += n;
    }
    CHECK(first > 25);
    CHECK(seen == 4 * ElasticJob::samples);
    CHECK(static_cast<std::int64_t>(images.size()) < 70);
  }
}

TEST_CASE("a job with servers survives the death of any member, and of servers") {
  for (std::size_t victim = 0; victim < 3; ++victim) {
    CAPTURE(victim);
    const test::TempFolder folder;
    control::ArbiterOptions arbiter;
    arbiter.servers = 2;
    ElasticJob job(3, arbiter, [=](ElasticJob& j, std::size_t me, const FitStep& s) {
      if (me == victim && s.step == 20) throw testing::Killed{};
      if (me == (victim + 1) % 3 && s.step == 33) j.kill_server(victim % 2);
    });
    job.audit = folder.path();
    require_survived(job.run(), victim, folder.path());
  }
}

TEST_CASE("a job ends when the last server dies") {
  control::ArbiterOptions arbiter;
  arbiter.servers = 1;
  ElasticJob job(2, arbiter, [](ElasticJob& j, std::size_t me, const FitStep& s) {
    slowly();
    if (me == 0 && s.step == 10) j.kill_server(0);
  });
  const auto ended = job.run();
  for (const auto& e : ended) CHECK(e.error.find("server 0 on h") != e.error.npos);
}

namespace {

// Trains without servers, or with this number of servers, of which one may die.
void survive_random_changes(int servers) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    CAPTURE(seed);
    const test::TempFolder folder;
    // holders: number of members that have the state. started: the same, plus members that are about to join.
    std::mutex mutex;
    int holders = 3;
    std::atomic<int> started{3}, events{0}, pieces{0};
    std::set<std::size_t> stepped{0, 1, 2}, going;
    // A member may leave only if another member has the state and stays. A joining member gets the state later, on a
    // busy machine much later.
    const auto may_go = [&](std::size_t me) {
      const std::lock_guard lock(mutex);
      if (holders <= 1 || !stepped.contains(me) || !going.insert(me).second) return false;
      --holders;
      --started;
      return true;
    };
    control::ArbiterOptions arbiter;
    arbiter.servers = servers;
    std::atomic<int> servers_left{servers};
    ElasticJob job(3, arbiter, [&](ElasticJob& j, std::size_t me, const FitStep& s) {
      slowly();
      {
        const std::lock_guard lock(mutex);
        if (stepped.insert(me).second) ++holders;
      }
      Rng rng(seed, Purpose::user, static_cast<std::uint64_t>(s.step), me);
      const auto what = rng.below(40);
      if (what < 2 && started < 5 && s.step < 150) {
        ++started;
        ++events;
        j.join();
      } else if (what == 4 && servers_left > 1 && servers_left-- > 1) {
        ++events;
        j.kill_server(static_cast<std::size_t>(servers_left));
      } else if (what == 2 && may_go(me)) {
        ++events;
        j.ask_to_leave(me);
      } else if (what == 3 && may_go(me)) {
        ++events;
        throw testing::Killed{};
      }
    });
    job.before_piece = [&](std::size_t me) {
      Rng rng(seed, Purpose::shuffle, static_cast<std::uint64_t>(pieces++), me);
      if (rng.below(300) != 0 || !may_go(me)) return;
      ++events;
      throw testing::Killed{};
    };
    job.epochs = 9;
    job.audit = folder.path();
    const auto ended = job.run();
    int finished = 0;
    const std::vector<double>* weights = nullptr;
    for (const auto& e : ended) {
      CHECK(e.error == "");
      if (e.left || e.killed) continue;
      ++finished;
      CHECK(e.steps == 9 * ElasticJob::steps_an_epoch);
      if (weights != nullptr) CHECK(e.weights == *weights);
      weights = &e.weights;
    }
    CHECK(finished > 0);
    CHECK(events > 10);
    MESSAGE("events: " << events.load());
    require_every_sample_once(folder.path(), 9);
  }
}

}  // namespace

TEST_CASE("a job survives random joins, leaves and deaths during steps") { survive_random_changes(0); }
TEST_CASE("a job with servers survives random joins, leaves and deaths, if one server stays") {
  survive_random_changes(3);
}
