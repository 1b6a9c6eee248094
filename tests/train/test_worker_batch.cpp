// SPDX-License-Identifier: MIT
// Tests how the learning rate changes with the global batch if the batch depends on the number of workers, and how the
// number of samples gives the position in the schedule.
#include <doctest/doctest.h>

#include <cstdint>

#include <tutti/train/detail/run/worker_batch.hpp>

using namespace tutti;
using detail::follow_batch;
using detail::rate_factor;
using detail::steps_done;

TEST_CASE("the learning rate is linear in the batch and changes gradually") {
  Counters c;
  follow_batch(c, 64, 64, 10);  // the run begins, so there is no ramp
  CHECK(rate_factor(c, 10) == 1);
  c.step = 100;
  follow_batch(c, 128, 64, 10);
  CHECK(rate_factor(c, 10) == 1);
  c.step = 105;
  CHECK(rate_factor(c, 10) == 1.5);
  // A change of the batch during the ramp continues from the current rate. If the batch does not change, the rate does
  // not change either.
  follow_batch(c, 128, 64, 10);
  follow_batch(c, 32, 64, 10);
  CHECK(rate_factor(c, 10) == 1.5);
  c.step = 110;
  CHECK(rate_factor(c, 10) == 1);
  c.step = 115;
  CHECK(rate_factor(c, 10) == 0.5);
  c.step = 1000;
  CHECK(rate_factor(c, 10) == 0.5);
  CHECK(rate_factor(c, 0) == 0.5);

  // A ramp of 0 steps changes the rate at once.
  follow_batch(c, 192, 64, 0);
  CHECK(rate_factor(c, 0) == 3);
  // The schedule is now for a batch of 128 instead of 64: the factor halves, so the rate itself stays the same.
  follow_batch(c, 192, 128, 0);
  CHECK(rate_factor(c, 0) == 1.5);
  // The run begins with a smaller batch than that of the schedule, because it has fewer workers.
  Counters fewer;
  follow_batch(fewer, 48, 64, 10);
  CHECK(rate_factor(fewer, 10) == 0.75);
}

TEST_CASE("the position in the schedule depends on the number of samples, with any batch size") {
  // With 100 samples per epoch and batches of 32, an epoch has 4 steps.
  CHECK(steps_done({0, 0}, 100, 32, EpochEnd::short_step) == 0);
  CHECK(steps_done({0, 96}, 100, 32, EpochEnd::short_step) == 3);
  CHECK(steps_done({2, 48}, 100, 32, EpochEnd::short_step) == 9);
  CHECK(steps_done({2, 48}, 100, 32, EpochEnd::run_on) == 7);
  // If all steps had this batch size, the result is the step number.
  for (const EpochEnd end : {EpochEnd::short_step, EpochEnd::run_on}) {
    Position p;
    for (std::int64_t step = 0; step < 40; ++step, p = advance(p, 100, 32, end)) {
      CAPTURE(step);
      CHECK(steps_done(p, 100, 32, end) == step);
    }
  }
}
