// SPDX-License-Identifier: MIT
// Shares of logical ranks that follow the speed of the processes: the decisions, without processes and clocks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/train/detail/run/share_controller.hpp>

using namespace tutti;
using namespace tutti::detail;

namespace {

using Times = std::vector<std::int64_t>;
using Counts = std::vector<std::int32_t>;

// A job with these times for one logical rank on each process. noise: the largest change of a step, as a part of it.
class Job {
 public:
  Job(int logical, Times of_ranks, double noise = 0, std::uint64_t seed = 1)
      : times(std::move(of_ranks)), noise_(noise), rng_(seed, Purpose::shuffle, 0), controller(logical) {
    windows_.resize(times.size());
    controller.begin(0, Times(times.size()));
  }
  void steps(int n) {
    for (; n > 0; --n) one_step();
  }
  void one_step() {
    ++step;
    for (std::size_t r = 0; r < times.size(); ++r) {
      const double part = 1 + noise_ * (static_cast<double>(rng_.below(2001)) - 1000) / 1000;
      const std::int32_t n = controller.shares()[r];
      windows_[r].add(1e-9 * part * static_cast<double>(times[r]) * n, n);
    }
    if (!controller.due(step)) return;
    Times known;
    for (const SpeedWindow& w : windows_) known.push_back(w.nanoseconds());
    const auto d = controller.decide(step, known);
    ++exchanges;
    if (d.slow >= 0) slow.push_back(d.slow);
    if (!d.changes) return;
    changes.push_back(step);
    for (SpeedWindow& w : windows_) w.restart();
  }
  // Returns the time of a step divided by that with the fastest shares.
  [[nodiscard]] double loss() const {
    const Counts best =
        fastest_shares(std::accumulate(controller.shares().begin(), controller.shares().end(), 0), times);
    return static_cast<double>(step_time(controller.shares(), times)) / static_cast<double>(step_time(best, times));
  }

  Times times;

 private:
  double noise_;
  Rng rng_;
  std::vector<SpeedWindow> windows_;

 public:
  ShareController controller;
  std::int64_t step = 0;
  std::vector<std::int64_t> changes;
  std::vector<int> slow;
  int exchanges = 0;
};

// Returns the time of a step with the fastest division, by trying all of them.
std::int64_t fastest_of_all(int logical, const Times& times, std::size_t rank = 0) {
  if (rank + 1 == times.size()) return logical * times[rank];
  std::int64_t best = std::int64_t{1} << 62;
  for (int n = 0; n <= logical; ++n)
    best = std::min(best, std::max(n * times[rank], fastest_of_all(logical - n, times, rank + 1)));
  return best;
}

}  // namespace

TEST_CASE("the fastest shares are those of a search through all, and equal ones for equal times") {
  Rng rng(7, Purpose::shuffle, 0);
  for (int i = 0; i < 300; ++i) {
    const int logical = 4 + static_cast<int>(rng.below(9));
    Times times(1 + rng.below(4));
    for (auto& t : times) t = 100 + rng.below(200);
    const Counts shares = fastest_shares(logical, times);
    CHECK(std::accumulate(shares.begin(), shares.end(), 0) == logical);
    // Each process has one at least: their speeds differ by a factor of three at most.
    CHECK(*std::min_element(shares.begin(), shares.end()) >= 1);
    const std::int64_t best = fastest_of_all(logical, times);
    if (times.size() * 3 <= static_cast<std::size_t>(logical)) CHECK(step_time(shares, times) == best);
    CHECK(step_time(shares, times) < 2 * best);
  }
  for (const int logical : {1, 3, 24, 100})
    for (int world = 1; world <= 9; ++world) {
      const Counts shares = fastest_shares(logical, Times(static_cast<std::size_t>(world), 50));
      for (int r = 0; r < world; ++r) CHECK(shares[static_cast<std::size_t>(r)] == part_of(logical, r, world).count);
    }
}

TEST_CASE("shares of known speeds") {
  CHECK(fastest_shares(24, Times{10, 20}) == Counts{16, 8});
  CHECK(fastest_shares(24, Times{10, 10, 10, 20}) == Counts{7, 7, 7, 3});
  CHECK(fastest_shares(4, Times{10, 10, 10, 21}) == Counts{1, 1, 1, 1});
  // A process that would double the step is left out, unless it must be measured.
  CHECK(fastest_shares(24, Times{10, 470}) == Counts{23, 1});
  CHECK(fastest_shares(24, Times{10, 480}) == Counts{24, 0});
  CHECK(fastest_shares(24, Times{10, 480}, 1) == Counts{23, 1});
  CHECK(fastest_shares(2, Times{10, 10, 1}) == Counts{0, 0, 2});
  // The largest numbers.
  const Counts many = fastest_shares(4096, Times(64, 100'000'000'000'000));
  CHECK(many == Counts(64, 64));
}

TEST_CASE("times are the median of the last steps, without the first one") {
  SpeedWindow w;
  CHECK(w.nanoseconds() == 0);
  w.add(100, 2);
  CHECK(w.nanoseconds() == 0);
  for (const double s : {4e-9, 8e-9, 6e-9}) w.add(s, 2);
  CHECK(w.nanoseconds() == 3);
  w.add(1, 0);  // no logical rank, no time
  CHECK(w.nanoseconds() == 3);
  w.restart();
  CHECK(w.nanoseconds() == 3);
  w.add(100, 1);
  CHECK(w.nanoseconds() == 3);
  w.add(50e-9, 1);
  CHECK(w.nanoseconds() == 50);
  for (int i = 0; i < 11; ++i) w.add(70e-9, 1);
  CHECK(w.nanoseconds() == 70);
  // Five slow steps of eleven do not count.
  for (int i = 0; i < 5; ++i) w.add(1, 1);
  CHECK(w.nanoseconds() == 70);
}

TEST_CASE("a job is at the speed of its processes 20 steps after their speed has changed") {
  Rng rng(3, Purpose::shuffle, 0);
  for (int i = 0; i < 200; ++i) {
    Times times(2 + rng.below(4));
    for (auto& t : times) t = 1'000'000 + rng.below(3'000'000);
    Job job(24, times, 0.02, static_cast<std::uint64_t>(i));
    job.steps(20);
    CHECK(job.loss() <= 1 / 0.95);
    const auto early = job.changes.size();
    job.steps(static_cast<int>(100 + rng.below(50)));
    // Settled: noise of 2 % changes hardly anything.
    CHECK(job.changes.size() <= early + 2);
    for (auto& t : job.times) t = 1'000'000 + rng.below(3'000'000);
    job.steps(20);
    CAPTURE(i);
    CHECK(job.loss() <= 1 / 0.95);
  }
}

TEST_CASE("two processes of which one has half the speed, and speeds that swap") {
  Job job(24, {1'000'000, 2'000'000});
  CHECK(job.controller.shares() == Counts{12, 12});
  job.steps(10);
  CHECK(job.controller.shares() == Counts{16, 8});
  CHECK(job.controller.bounds() == Counts{0, 16, 24});
  job.steps(200);
  CHECK(job.changes.size() == 1);
  std::swap(job.times[0], job.times[1]);
  job.steps(20);
  CHECK(job.controller.shares() == Counts{8, 16});
}

TEST_CASE("a process that is slow for a moment does not change the shares") {
  for (const int steps : {1, 2, 3, 5}) {
    Job job(24, {1'000'000, 1'000'000, 1'000'000}, 0.01);
    job.steps(50);
    for (int again = 0; again < 20; ++again) {
      job.times[1] *= 5;
      job.steps(steps);
      job.times[1] /= 5;
      job.steps(11);
    }
    CHECK(job.changes.empty());
  }
}

TEST_CASE("speeds that change faster than shares can follow do not make them oscillate") {
  for (const int period : {8, 12, 16, 25}) {
    Job job(24, {1'000'000, 2'000'000});
    for (int i = 0; i < 3000 / period; ++i) {
      job.steps(period);
      std::swap(job.times[0], job.times[1]);
    }
    CAPTURE(period);
    CHECK(job.changes.size() <= 24);
    // When they are steady again, the job follows.
    job.steps(static_cast<int>(ShareController::longest) + 20);
    CHECK(job.loss() <= 1 / 0.95);
  }
  // Noise of 10 % of each step, with steps that are finely divisible.
  Job noisy(240, {1'000'000, 1'000'000, 1'000'000}, 0.1);
  noisy.steps(2000);
  CHECK(noisy.changes.size() <= 20);
  CHECK(noisy.loss() < 1.08);
  CHECK(noisy.exchanges <= 400);
}

TEST_CASE("a process that is too slow for one logical rank waits, is named once, and is measured again") {
  Job job(8, {1'000'000, 1'000'000, 100'000'000});
  job.steps(10);
  CHECK(job.controller.shares() == Counts{4, 4, 0});
  CHECK(job.slow == std::vector<int>{2});
  // It takes 25 times as long as a step without it: 3 steps of 3,750.
  int measured = 0;
  std::int64_t time = 0;
  constexpr int steps = 20'000;
  for (int i = 0; i < steps; ++i) {
    job.one_step();
    measured += job.controller.shares()[2];
    time += step_time(job.controller.shares(), job.times);
  }
  CHECK(measured == 15);
  CHECK(static_cast<double>(time) < 1.02 * 4'000'000 * steps);
  CHECK(job.slow == std::vector<int>{2});
  job.times[2] = 1'000'000;
  job.steps(4'000);
  CHECK(job.controller.shares() == Counts{3, 3, 2});
  // It is named again if it becomes slow again. With one logical rank, it is one that cannot be helped.
  job.times[2] = 6'000'000;
  job.steps(static_cast<int>(ShareController::longest) + 30);
  CHECK(job.controller.shares() == Counts{4, 3, 1});
  CHECK(job.slow == std::vector<int>{2, 2});
}

TEST_CASE("a process that is little too slow is measured after 100 steps, then after longer and longer times") {
  // Without it a step takes 4 ms, with it 9: at 2 % of the time that is each 338 steps.
  Job job(8, {1'000'000, 1'000'000, 9'000'000});
  std::vector<std::int64_t> tries;
  for (int i = 0; i < 10'000; ++i) {
    const bool had = job.controller.shares()[2] > 0;
    job.one_step();
    if (!had && job.controller.shares()[2] > 0) tries.push_back(job.step);
  }
  REQUIRE(tries.size() >= 5);
  CHECK(tries[0] < 360);
  CHECK(tries[1] - tries[0] < 360);
  CHECK(tries[4] - tries[3] > 1500);
  // Short steps are not measured, so a trial lasts longer with them.
  ShareController c(8);
  c.begin(0, {1, 1, 1000});
  CHECK(c.due(7));
  c.skip_step();
  CHECK(!c.due(7));
  CHECK(c.due(8));
}

TEST_CASE("a new generation begins with the known times, and with the median for processes without one") {
  ShareController c(24);
  c.begin(100, {10, 20, 0});
  CHECK(c.shares() == fastest_shares(24, Times{10, 20, 20}));
  CHECK(!c.due(100));
  CHECK(!c.due(106));
  CHECK(c.due(107));
  c.begin(200, {0, 0});
  CHECK(c.shares() == Counts{12, 12});
  // More processes than logical ranks: the last ones wait, and are not named for it.
  ShareController few(2);
  few.begin(0, {0, 0, 0});
  CHECK(few.shares() == Counts{1, 1, 0});
  const auto d = few.decide(7, {10, 10, 0});
  CHECK(!d.changes);
  CHECK(d.slow == -1);
}
