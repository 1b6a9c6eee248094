// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tutti/optim/schedule.hpp>

using namespace tutti;            // NOLINT(google-build-using-namespace)
using namespace tutti::schedule;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::int64_t imagenet = 1281167;

SchedulePoint at(std::int64_t step, std::int64_t total, std::int64_t per_epoch = 1) {
  return {.step = step, .steps_per_epoch = per_epoch, .total_steps = total};
}

// Checks a schedule by a table. The numbers of a table were computed in 32-bit floating point and have five decimals.
void check_table(const Schedule& schedule, std::int64_t total, std::int64_t per_epoch,
                 const std::vector<std::pair<std::int64_t, double>>& table) {
  for (const auto& row : table) {
    CAPTURE(row.first);
    CHECK(std::abs(schedule(at(row.first, total, per_epoch)) - row.second) <= 0.52e-5);
  }
}

template <class F>
std::string usage_error(F&& f) {
  try {
    f();
  } catch (const UsageError& e) {
    CHECK(e.exit_code() == 2);
    return e.what();
  }
  return "nothing thrown";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

static_assert(LrSchedule<Constant> && LrSchedule<Poly> && LrSchedule<Cosine> && LrSchedule<CosineRestarts> &&
              LrSchedule<LinearCosine> && LrSchedule<Steps> && LrSchedule<Piecewise> && LrSchedule<PiecewiseLinear> &&
              LrSchedule<Warmup> && LrSchedule<WarmupWithin> && LrSchedule<Sequence> && LrSchedule<Scaled> &&
              LrSchedule<OneCycle> && LrSchedule<PerEpoch> && LrSchedule<Schedule>);
static_assert(!LrSchedule<int>);

TEST_CASE("steps correspond to the epochs of the table") {
  const std::vector<std::pair<std::int64_t, double>> rows = {
      {50, 0.3}, {100, 0.6}, {150, 1.0}, {13750, 87.9}, {14050, 89.8}};
  for (const auto& [step, epoch] : rows) {
    CHECK(std::round(static_cast<double>(step) * 8192 / imagenet * 10) / 10 == doctest::Approx(epoch));
  }
  CHECK(at(234, 1000, 156).epoch() == doctest::Approx(1.5));
}

TEST_CASE("poly with warmup equals the table of 32 devices x 256") {
  const Warmup schedule(0.001, 3.2, 1560, Poly(3.2));
  check_table(schedule, 14075, 156,
              {{0, 0.00100},
               {1, 0.00305},
               {50, 0.10353},
               {100, 0.20606},
               {400, 0.82126},
               {1560, 3.20000},
               {5000, 1.68261},
               {13750, 0.00217},
               {13800, 0.00156},
               {13850, 0.00104},
               {13900, 0.00064},
               {13950, 0.00033},
               {14000, 0.00012},
               {14050, 0.00002},
               {14075, 0.00001}});
}

TEST_CASE("linear cosine with warmup equals the table of 256 devices x 256") {
  const Warmup schedule(0.001, 3.7, 190, LinearCosine(3.7));
  check_table(schedule, 1759, 19,
              {{1400, 0.14850},
               {1450, 0.10283},
               {1500, 0.06719},
               {1550, 0.04059},
               {1600, 0.02190},
               {1650, 0.00987},
               {1700, 0.00313},
               {1750, 0.00026}});
}

TEST_CASE("poly equals the table of 1000 steps of the synthetic run") {
  check_table(Poly(6.4), 1000, 1,
              {{0, 6.40000}, {1, 6.38721}, {100, 5.18400}, {200, 4.09600}, {300, 3.13600}, {400, 2.30401}});
}

TEST_CASE("poly has a power, an end value, a rate after the end, and optional cycles") {
  CHECK(Poly(1.0, {.power = 1.0, .end = 0.2})(at(25, 100)) == doctest::Approx(0.8));
  CHECK(Poly(1.0, {.power = 1.0, .end = 0.2})(at(100, 100)) == doctest::Approx(0.2));
  CHECK(Poly(1.0, {.power = 1.0, .end = 0.2})(at(500, 100)) == doctest::Approx(0.2));
  CHECK(Poly(1.0, {.power = 3.0, .end = 0.0})(at(50, 100)) == doctest::Approx(0.125));
  const Poly cycle(1.0, {.power = 1.0, .end = 0.0, .cycle = true});
  CHECK(cycle(at(50, 100)) == doctest::Approx(0.5));
  CHECK(cycle(at(100, 100)) == doctest::Approx(0.0));
  CHECK(cycle(at(150, 100)) == doctest::Approx(0.25));
  CHECK(cycle(at(200, 100)) == doctest::Approx(0.0));
  CHECK(Poly(1.0)(at(0, 0)) == doctest::Approx(1e-5));
}

TEST_CASE("one cycle rises to the peak and falls to the last rate") {
  const OneCycle cos(1.0, {.pct_start = 0.25});
  CHECK(cos(at(0, 100)) == doctest::Approx(0.04));
  CHECK(cos(at(12, 100)) == doctest::Approx(0.52));
  CHECK(cos(at(24, 100)) == doctest::Approx(1.0));
  CHECK(cos(at(99, 100)) == doctest::Approx(4e-6));
  CHECK(cos(at(1000, 100)) == doctest::Approx(4e-6));
  const OneCycle line(2.0, {.pct_start = 0.5, .div_factor = 4, .final_div_factor = 10, .linear = true});
  CHECK(line(at(0, 101)) == doctest::Approx(0.5));
  CHECK(line(at(99, 200)) == doctest::Approx(2.0));
  CHECK(line(at(149, 200)) == doctest::Approx(2 - 0.5 * 1.95));
  const OneCycle three(1.0, {.pct_start = 0.3, .div_factor = 10, .final_div_factor = 10, .three_phase = true});
  CHECK(three(at(29, 100)) == doctest::Approx(1.0));
  CHECK(three(at(58, 100)) == doctest::Approx(0.1));
  CHECK(three(at(99, 100)) == doctest::Approx(0.01));
  for (std::int64_t total : {0, 1, 2}) CHECK(std::isfinite(cos(at(0, total))));
  CHECK(contains(usage_error([] { OneCycle(1.0, {.pct_start = 1.5}); }), "pct_start in [0"));
  CHECK(contains(usage_error([] { OneCycle(1.0, {.pct_start = 0.6, .three_phase = true}); }), ", 0.5"));
  CHECK(contains(usage_error([] { OneCycle(1.0, {.div_factor = 0}); }), "div_factor"));
}

TEST_CASE("a schedule per epoch keeps the rate of the epoch's first step") {
  const PerEpoch s(Poly(1.0, {.power = 1, .end = 0}));
  CHECK(s(at(0, 100, 25)) == 1);
  CHECK(s(at(24, 100, 25)) == 1);
  CHECK(s(at(25, 100, 25)) == doctest::Approx(0.75));
  CHECK(s(at(99, 100, 25)) == doctest::Approx(0.25));
  CHECK(s({.step = 3, .steps_per_epoch = 0, .total_steps = 10}) == doctest::Approx(0.7));
}

TEST_CASE("constant keeps the rate") { CHECK(Constant(0.3)(at(17, 20)) == 0.3); }

TEST_CASE("cosine decays from the rate to zero") {
  CHECK(Cosine(2.0)(at(0, 100)) == doctest::Approx(2.0));
  CHECK(Cosine(2.0)(at(50, 100)) == doctest::Approx(1.0));
  CHECK(Cosine(2.0)(at(25, 100)) == doctest::Approx(1.0 + std::numbers::sqrt2 / 2));
  CHECK(Cosine(2.0)(at(100, 100)) == doctest::Approx(0.0));
  CHECK(Cosine(2.0, 0.1)(at(100, 100)) == doctest::Approx(0.2));
  CHECK(Cosine(2.0, 0.1)(at(50, 100)) == doctest::Approx(2.0 * (0.9 * 0.5 + 0.1)));
}

TEST_CASE("cosine restarts with decaying periods") {
  // Periods of 25, 50 and 100 steps. The run ends at step 100, within the last period.
  const CosineRestarts schedule(1.0, {.first_decay_ratio = 0.25, .t_mul = 2.0, .m_mul = 0.1});
  CHECK(schedule(at(0, 100)) == doctest::Approx(1.0));
  CHECK(schedule(at(24, 100)) == doctest::Approx(0.5 * (1 + std::cos(std::numbers::pi * 24 / 25))));
  CHECK(schedule(at(25, 100)) == doctest::Approx(0.1));
  CHECK(schedule(at(50, 100)) == doctest::Approx(0.05));
  CHECK(schedule(at(75, 100)) == doctest::Approx(0.01));
  CHECK(schedule(at(100, 100)) == doctest::Approx(0.005 * (1 + std::cos(std::numbers::pi / 4))));
  const CosineRestarts even(1.0, {.first_decay_ratio = 0.25, .t_mul = 1.0, .m_mul = 1.0, .alpha = 0.5});
  for (int period = 0; period < 4; ++period) {
    CHECK(even(at(25 * period, 100)) == doctest::Approx(1.0));
    CHECK(even(at(25 * period + 20, 100)) == doctest::Approx(0.25 * (1 + std::cos(std::numbers::pi * 0.8)) + 0.5));
  }
  CHECK(CosineRestarts(1.0)(at(0, 100)) == doctest::Approx(1.0));
  CHECK(CosineRestarts(1.0)(at(33, 100)) == doctest::Approx(0.1));
}

TEST_CASE("steps are given in epochs, fractions of epochs, or steps") {
  const Steps schedule(0.05, {200, 250}, 0.1);
  CHECK(schedule(at(391 * 200 - 1, 391 * 300, 391)) == doctest::Approx(0.05));
  CHECK(schedule(at(391 * 200, 391 * 300, 391)) == doctest::Approx(0.005));
  CHECK(schedule(at(391 * 250, 391 * 300, 391)) == doctest::Approx(0.0005));
  const Steps half(1.0, {0.5}, 0.5);
  CHECK(half(at(4, 20, 10)) == 1.0);
  CHECK(half(at(5, 20, 10)) == 0.5);
  const Steps by_step(1.0, {3, 5}, 0.5, Unit::steps);
  CHECK(by_step(at(2, 9, 2)) == 1.0);
  CHECK(by_step(at(3, 9, 2)) == 0.5);
  CHECK(by_step(at(5, 9, 2)) == 0.25);
  CHECK(Steps(1.0, {})(at(5, 9)) == 1.0);
}

TEST_CASE("piecewise has absolute values") {
  const Piecewise schedule({30, 60, 80}, {0.1, 0.01, 0.002, 0.0003});
  CHECK(schedule(at(299, 900, 10)) == 0.1);
  CHECK(schedule(at(300, 900, 10)) == 0.01);
  CHECK(schedule(at(700, 900, 10)) == 0.002);
  CHECK(schedule(at(800, 900, 10)) == 0.0003);
}

TEST_CASE("piecewise linear interpolates") {
  const PiecewiseLinear schedule({{1, 0.0}, {5, 0.4}, {15, 0.0}});
  CHECK(schedule(at(0, 200, 10)) == 0.0);
  CHECK(schedule(at(30, 200, 10)) == doctest::Approx(0.2));
  CHECK(schedule(at(50, 200, 10)) == doctest::Approx(0.4));
  CHECK(schedule(at(100, 200, 10)) == doctest::Approx(0.2));
  CHECK(schedule(at(190, 200, 10)) == 0.0);
}

TEST_CASE("warmup may have no steps, may be longer than the run, and counts from the start of the run") {
  CHECK(Warmup(0.1, 1.0, 0, Constant(1.0))(at(0, 10)) == 1.0);
  CHECK(Warmup(0.0, 1.0, 10, Cosine(1.0))(at(5, 10)) == doctest::Approx(0.5));
  CHECK(Warmup(0.0, 1.0, 10, Cosine(1.0))(at(10, 10)) == doctest::Approx(0.0));
  CHECK(Warmup(0.0, 1.0, 10, Cosine(1.0))(at(12, 8)) == doctest::Approx(0.0));
  const Steps thirds(1.0, {3}, 0.1);
  CHECK(Warmup(0.0, 1.0, 20, thirds)(at(30, 90, 10)) == doctest::Approx(1.0));
  CHECK(WarmupWithin(0.0, 1.0, 20, thirds)(at(10, 90, 10)) == doctest::Approx(0.5));
  CHECK(WarmupWithin(0.0, 1.0, 20, thirds)(at(30, 90, 10)) == doctest::Approx(0.1));
}

TEST_CASE("schedules can be sequenced and scaled") {
  const Sequence schedule({Constant(1.0), Poly(0.8, {.power = 1.0, .end = 0.0}), Scaled(0.5, Cosine(0.2))}, {10, 30});
  CHECK(schedule(at(9, 50)) == 1.0);
  CHECK(schedule(at(10, 50)) == doctest::Approx(0.8));
  CHECK(schedule(at(20, 50)) == doctest::Approx(0.4));
  CHECK(schedule(at(30, 50)) == doctest::Approx(0.1));
  CHECK(schedule(at(40, 50)) == doctest::Approx(0.05));
  CHECK(schedule(at(50, 50)) == doctest::Approx(0.0));
}

TEST_CASE("a schedule can be copied and can hold a user's function") {
  Schedule a = Constant(0.5);
  const Schedule b = a;
  a = Cosine(1.0);
  CHECK(b(at(10, 10)) == 0.5);
  CHECK(a(at(10, 10)) == doctest::Approx(0.0));
  const Schedule by_world = [](const SchedulePoint& p) { return 0.1 * p.world; };
  CHECK(by_world({.world = 4}) == doctest::Approx(0.4));
  const Schedule by_batch = [](const SchedulePoint& p) { return 0.1 * static_cast<double>(p.global_batch) / 256; };
  CHECK(by_batch({.global_batch = 512}) == doctest::Approx(0.2));
}

TEST_CASE("--lr-step-epochs lists the epochs of the steps") {
  const Schedule steps = parse_lr_step_epochs("200,250", 0.05, 0.1);
  CHECK(steps(at(199, 300)) == doctest::Approx(0.05));
  CHECK(steps(at(200, 300)) == doctest::Approx(0.005));
  CHECK(steps(at(299, 300)) == doctest::Approx(0.0005));
  for (const char* text : {"pow2", "pow-2", "pow 2", "pow2.0"}) {
    const Schedule poly = parse_lr_step_epochs(text, 0.4, 0.1);
    CHECK(poly(at(50, 100)) == doctest::Approx(0.1));
    CHECK(poly(at(100, 100)) == 0.0);
  }
  CHECK(parse_lr_step_epochs("", 0.4, 0.1)(at(50, 100)) == 0.4);
  CHECK(parse_lr_step_epochs(" 30, 60 ", 1.0, 0.5)(at(60, 90)) == 0.25);
}

TEST_CASE("--lr-step-epochs: bad text is refused") {
  for (const char* text : {"30,", ",", "30;60", "thirty", "pow", "pow2,3", "powx", "1e999", "nan", "-3"}) {
    CAPTURE(text);
    const std::string message = usage_error([&] { (void)parse_lr_step_epochs(text, 0.1, 0.1); });
    CHECK(contains(message, "expected"));
  }
  CHECK(contains(usage_error([] { (void)parse_lr_step_epochs("60,30", 0.1, 0.1); }), "increasing boundaries"));
}

TEST_CASE("the error for a bad argument names the argument") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(contains(usage_error([&] { (void)Constant(nan); }), "[schedule::Constant] expected a learning rate"));
  CHECK(contains(usage_error([] { (void)Constant(-0.1); }), "got -0.1"));
  CHECK(contains(usage_error([&] { (void)Poly(infinity); }), "got inf"));
  CHECK(contains(usage_error([] { (void)Poly(1.0, {.power = -1.0}); }), "a power"));
  CHECK(contains(usage_error([] { (void)Cosine(1.0, 1.5); }), "alpha"));
  CHECK(contains(usage_error([] { (void)CosineRestarts(1.0, {.first_decay_ratio = 0.0}); }), "first_decay_ratio"));
  CHECK(contains(usage_error([] { (void)CosineRestarts(1.0, {.t_mul = 0.5}); }), "t_mul"));
  CHECK(contains(usage_error([&] { (void)LinearCosine(1.0, {.beta = nan}); }), "beta"));
  CHECK(contains(usage_error([] { (void)Steps(1.0, {10, 10}); }), "increasing boundaries"));
  CHECK(contains(usage_error([] { (void)Piecewise({1, 2}, {0.1, 0.2}); }), "expected 3 learning rates, got 2"));
  CHECK(contains(usage_error([] { (void)Piecewise({1, 2}, {}); }), "expected 3 learning rates, got 0"));
  CHECK(contains(usage_error([] { (void)PiecewiseLinear({}); }), "1 point or more"));
  CHECK(contains(usage_error([] { (void)PiecewiseLinear({{2, 0.1}, {1, 0.1}}); }), "increasing boundaries"));
  CHECK(contains(usage_error([] { (void)Warmup(0.0, 1.0, -1, Constant(1.0)); }), "0 steps or more"));
  CHECK(contains(usage_error([] { (void)Sequence({Constant(1.0)}, {10}); }), "expected 2 schedules, got 1"));
  CHECK(contains(usage_error([] { (void)Sequence({Constant(1.0), Constant(1.0)}, {0}); }), "joints"));
  CHECK(contains(usage_error([] { (void)Scaled(-1.0, Constant(1.0)); }), "a factor"));
}
