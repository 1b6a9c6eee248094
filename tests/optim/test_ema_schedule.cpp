// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

#include <tutti/optim/ema_schedule.hpp>

using namespace tutti;

TEST_CASE("by default the decay of an average grows with the steps, and every step updates it") {
  const EmaSchedule s;
  CHECK(s.remaining(0.999, 1) == doctest::Approx(2.0 / 11));
  CHECK(s.remaining(0.999, 90) == doctest::Approx(0.91));
  CHECK(s.remaining(0.999, 1'000'000) == 0.999);
}

TEST_CASE("an average is updated every k-th step") {
  EmaSchedule s{.warmup = EmaSchedule::Warmup::none, .every = 20};
  for (std::int64_t step = 1; step <= 60; ++step) CHECK(s.remaining(0.5, step) == (step % 20 == 0 ? 0.5 : 1));
}

TEST_CASE("timm's average is a copy at first, and its decay grows by a power") {
  EmaSchedule s = EmaSchedule::timm(true, 2);
  for (std::int64_t step : {1, 2, 3}) CHECK(s.remaining(0.9999, step) == 0);
  CHECK(s.remaining(0.9999, 4) == doctest::Approx(1 - std::pow(2, -2.0 / 3)));
  CHECK(s.remaining(0.9999, 10'003) == doctest::Approx(1 - std::pow(10'001, -2.0 / 3)));
  CHECK(s.remaining(0.99, 1'000'000) == 0.99);
  s.min_decay = 0.8;
  CHECK(s.remaining(0.9999, 4) == 0.8);
  s = EmaSchedule::timm(false);
  CHECK(s.remaining(0.9999, 1) == 0);
  CHECK(s.remaining(0.9999, 2) == 0.9999);
}

TEST_CASE("torchvision's average counts its steps in each epoch, and is a copy during the warmup") {
  const EmaSchedule s = EmaSchedule::torchvision(4, 10, 20);
  std::int64_t updates = 0;
  for (std::int64_t step = 1; step <= 40; ++step) {
    const bool updated = (step - 1) % 10 % 4 == 0;  // after steps 1, 5, 9, 11, 15, ...
    const double share = s.remaining(0.9, step);
    CHECK(share == (!updated ? 1 : step <= 21 ? 0 : 0.9));
    updates += updated ? 1 : 0;
  }
  CHECK(updates == 12);
  CHECK(EmaSchedule::torchvision_decay(0.99998, 1024, 32, 600) == doctest::Approx(1 - 2e-5 * 1024 * 32 / 600));
  CHECK(EmaSchedule::torchvision_decay(0.5, 1024, 32, 1) == 0);
}

TEST_CASE("with lookahead the weights become the average after each update and after the last step") {
  const EmaSchedule s = EmaSchedule::airbench(5, 12);
  CHECK(s.remaining(0.8, 4) == 1);
  CHECK(s.remaining(0.8, 5) == doctest::Approx(0.8 * 125 / 1728));
  CHECK(s.remaining(0.8, 10) == doctest::Approx(0.8 * 1000 / 1728));
  CHECK_FALSE(s.returns(4));
  CHECK(s.returns(5));
  CHECK_FALSE(s.returns(11));
  CHECK(s.returns(12));
  CHECK_FALSE(EmaSchedule{}.returns(5));
  CHECK_THROWS_AS(EmaSchedule::airbench(5, 0).require_valid(), UsageError);
}

TEST_CASE("numbers that an average cannot use are an error") {
  const auto refused = [](const EmaSchedule& s, const char* text) {
    CHECK_THROWS_WITH_AS(s.require_valid(), doctest::Contains(text), UsageError);
  };
  CHECK_NOTHROW(EmaSchedule::timm(true).require_valid());
  refused({.every = 0}, "1 step or more between updates");
  refused({.epoch = -1}, "0 steps or more");
  refused({.copies = -1}, "0 steps or more");
  refused({.gamma = 0}, "a gamma above 0");
  refused({.power = std::nan("")}, "a power above 0");
  refused({.min_decay = 1}, "a least decay in [0, 1)");
}
