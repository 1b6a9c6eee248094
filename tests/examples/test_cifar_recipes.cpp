// SPDX-License-Identifier: MIT
// Tests the options that the recipes of the records for CIFAR-10 set.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "data/temp_folder.hpp"
#include "tools/trainer/check.hpp"
#include "tools/trainer/cli.hpp"
#include "tools/trainer/recipe.hpp"
#include "tools/trainer/recipes.hpp"

using namespace tutti;
using namespace tutti::trainer;
using test::contains;
using test::message_of;

namespace {

constexpr std::int64_t images = 50000;

RunOptions options(const std::string& line) {
  std::istringstream in("train_cifar10 " + line);
  std::vector<std::string> words;
  for (std::string w; in >> w;) words.push_back(w);
  std::vector<char*> argv;
  for (auto& a : words) argv.push_back(a.data());
  ::unsetenv("TUTTI_DATA");
  auto o = parse_command_line(static_cast<int>(argv.size()), argv.data());
  REQUIRE(o);
  check(*o);
  return *o;
}
std::string error(const std::string& line) {
  return message_of<UsageError>([&] { options(line); });
}
bool notes(const RunOptions& o, const std::string& text) {
  for (const auto& n : o.notes)
    if (contains(n, text)) return true;
  return false;
}
// The rate of a step, from 0, of all images.
double rate(const RunOptions& o, std::int64_t step) {
  const FitOptions f = fit_options(o, images);
  return f.schedule(SchedulePoint{step, images / o.global_batch_size, f.total_steps, o.global_batch_size, 1});
}

}  // namespace

TEST_CASE("the records for CIFAR-10 set their batch, epochs and rate, and are listed with their source") {
  const std::string list = recipe_list(Program::train_cifar10);
  for (const Recipe& r : recipes_of(Program::train_cifar10)) {
    if (r.batch == 0 || std::string(r.name) == "fast") continue;
    CAPTURE(r.name);
    const RunOptions o = options(std::string("--recipe ") + r.name);
    CHECK(o.global_batch_size == r.batch);
    CHECK(o.batch_of == "job");
    CHECK(*o.lr == r.rate);
    CHECK(o.epochs == r.epochs);
    CHECK(o.last_epoch == r.last_epoch);
    CHECK(o.pad_mode == "reflect");
    CHECK(o.rgb_mean == "128");
    CHECK_FALSE(notes(o, "images per update in place of"));
    CHECK(contains(list, r.name));
    CHECK(contains(list, r.source));
    CHECK(contains(list, r.published));
    CHECK(contains(list, "differs"));
    CHECK(options(std::string("--precision f32 --recipe ") + r.name).rgb_mean.empty());
  }
  CHECK(contains(list, "7.59 epochs"));
}

TEST_CASE("rates of airbench94 and airbench96 are those of their files") {
  // The files have rates for a sum of 1024 losses.
  const double kilo = 1024 * (1 + 1 / (1 - 0.85));
  const RunOptions o = options("--recipe airbench94");
  CHECK(*o.lr == doctest::Approx(11.5 / kilo * 1024));
  CHECK(*o.wd * *o.lr == doctest::Approx(0.0153 * 1024 / kilo));
  CHECK(fit_options(o, images).total_steps == 476);
  CHECK(fit_options(o, images).max_steps == 476);
  CHECK(rate(o, 0) == doctest::Approx(0.2 * *o.lr));
  CHECK(rate(o, 50) == doctest::Approx((0.2 + 0.8 * 50 / 109) * *o.lr));
  CHECK(rate(o, 109) == doctest::Approx(*o.lr));
  CHECK(rate(o, 300) == doctest::Approx((1 - 0.93 * 191 / 367) * *o.lr));
  const TrainerOptions t = trainer_options(o, images);
  CHECK(t.early.steps == 144);
  CHECK(t.early.of_steps == 0);
  CHECK(t.ema_decay == doctest::Approx(std::pow(0.95, 5)));
  CHECK(t.ema.total == 476);
  CHECK(t.ema.every == 5);
  CHECK(t.ema.remaining(t.ema_decay, 240) == doctest::Approx(std::pow(0.95, 5) * std::pow(240 / 476.0, 3)));
  CHECK(t.ema.remaining(t.ema_decay, 241) == 1);
  CHECK(t.ema.returns(240));
  CHECK_FALSE(t.ema.returns(241));
  CHECK(t.ema.returns(476));

  const RunOptions large = options("--recipe airbench96");
  CHECK(*large.lr == doctest::Approx(9 / kilo * 1024));
  CHECK(*large.wd * *large.lr == doctest::Approx(0.012 * 1024 / kilo));
  CHECK(fit_options(large, images).schedule(SchedulePoint{177, 48, 1776, 1024, 1}) == doctest::Approx(*large.lr));
  CHECK(fit_options(large, images).schedule(SchedulePoint{1000, 48, 1776, 1024, 1}) ==
        doctest::Approx(*large.lr * 776 / 1599));
  CHECK(large.cutout == 12);
  CHECK(large.pad_size == 4);
  CHECK(trainer_options(large, images).early.steps == 144);
  CHECK(steps_of_run(large, images) == 1776);

  // The sum of the losses of 512 of 1024 images.
  const RunOptions faster = options("--recipe airbench96-faster");
  CHECK(*faster.lr == doctest::Approx(9 / kilo * 512));
  CHECK(*faster.wd * *faster.lr == doctest::Approx(0.012 * 1024 / kilo));
  CHECK(faster.hardest == 0.5);
  CHECK(steps_of_run(faster, images) == 2160);
  CHECK(trainer_options(faster, images).early.steps == 0);
  CHECK(fit_options(faster, images).schedule(SchedulePoint{216, 48, 2160, 1024, 1}) == doctest::Approx(*faster.lr));
}

TEST_CASE("rates of the records with Muon are those of their files") {
  const RunOptions o = options("--recipe airbench94-muon");
  CHECK(*o.lr == 0.24);
  CHECK(*o.rest_lr == doctest::Approx(0.053 * 2000));
  CHECK(*o.rest_lr * *o.rest_wd == doctest::Approx(2e-6 * 2000));
  CHECK(steps_of_run(o, images) == 200);
  CHECK(rate(o, 0) == doctest::Approx(0.24));
  CHECK(make_schedule(o, 25)(SchedulePoint{50, 25, 200, 2000, 1}) == doctest::Approx(0.24 * 0.75));
  TrainerOptions t = trainer_options(o, images);
  CHECK(t.early.steps == 75);
  CHECK(t.early.of_steps == 200);
  // The rate of the whitening biases falls to 0 in 75 steps.
  CHECK((1 - 30 / 200.0) * t.early.factor(31) == doctest::Approx(1 - 30 / 75.0));
  CHECK(t.early.factor(76) == 0);

  const RunOptions hive = options("--recipe hive94");
  CHECK(steps_of_run(hive, images) == 243);
  CHECK(fit_options(hive, images).max_steps == 243);
  CHECK(*hive.wd == doctest::Approx(1.0418e-6 * 1536));
  CHECK(*hive.rest_lr * *hive.rest_wd == doctest::Approx(1.0418e-6 * 1536));
  CHECK(hive.tta == 3);
  t = trainer_options(hive, images);
  CHECK(t.early.steps == 7);
  const UpdateOp op = t.optimizer.update_op();
  const auto* const rule = std::get_if<MuonUpdate>(&op);
  REQUIRE(rule != nullptr);
  CHECK(rule->a == 3.4576);
  CHECK(rule->steps == 3);
  CHECK(rule->sparse_steps == 243);
  // The interval grows from 2 to 16 steps.
  std::vector<std::int64_t> at;
  for (std::int64_t s = 1; s <= 243; ++s)
    if (rule->normalizes(s)) at.push_back(s);
  REQUIRE(at.size() > 20);
  CHECK(at[0] == 2);
  CHECK(at[1] == 4);
  CHECK(at.back() - at[at.size() - 2] >= 14);
}

TEST_CASE("another batch scales the rates of the records by their own rules, and a line says so") {
  RunOptions o = options("--recipe airbench94 --batch-size 512");
  CHECK(*o.lr == doctest::Approx(0.75));
  CHECK(notes(o, "512 images per update in place of 1024"));
  o = options("--recipe airbench94-muon --batch-size 1000");
  CHECK(*o.lr == 0.24);
  CHECK(notes(o, "does not follow the batch"));
  CHECK(*o.rest_lr == doctest::Approx(53));
  CHECK(notes(o, "--rest-lr is 53 in place of 106 (proportional to the batch)"));
  o = options("--recipe hive94 --batch-size 768");
  CHECK(*o.wd == doctest::Approx(1.0418e-6 * 768));
  // Other epochs are whole ones.
  CHECK(options("--recipe hive94 --epochs 4").last_epoch == 1);
  CHECK(options("--recipe airbench94 --epochs 20").last_epoch == 1);
  CHECK(options("--recipe airbench94 --epochs 20 --last-epoch 0.5").last_epoch == 0.5);
}

TEST_CASE("an option that turns off a part of a record turns off what belongs to it") {
  RunOptions o = options("--recipe airbench94 --ema-decay 0");
  CHECK(o.ema_schedule == "counted");
  CHECK(o.ema_every == 1);
  o = options("--recipe airbench94-muon --early-epochs 0");
  CHECK(o.early_parameters.empty());
  CHECK(trainer_options(o, images).early.steps == 0);
  CHECK_FALSE(options("--recipe hive94 --muon-normalize false").muon_sparse_normalize);
  CHECK(options("--recipe airbench94-muon --optimizer sgd").optimizer == "sgd");
  CHECK(options("--recipe airbench94 --lr-schedule onecycle").warmup_epochs == 0);
  CHECK(options("--recipe airbench94 --network airbench96").depth == 11);
}

TEST_CASE("options that do not fit the parts of the records are refused") {
  CHECK(contains(error("--recipe airbench"), "airbench94"));
  CHECK(contains(error("--cutout 70000"), "[--cutout]"));
  CHECK(contains(error("--cutout 4 --random-erase 0.5"), "[--cutout]"));
  CHECK(contains(error("--last-epoch 0"), "[--last-epoch]"));
  CHECK(contains(error("--epoch-end later"), "[--epoch-end]"));
  CHECK(contains(error("--early-epochs 1"), "[--early-epochs]"));
  CHECK(contains(error("--early-parameters fc"), "[--early-parameters]"));
  CHECK(contains(error("--recipe airbench94 --early-rate linear"), "[--early-rate]"));
  CHECK(contains(error("--rest-wd 1"), "[--rest-wd]"));
  CHECK(contains(error("--optimizer muon --muon-sparse-normalize"), "[--muon-sparse-normalize]"));
  CHECK(contains(error("--optimizer muon --muon-coefficients 1,2"), "[--muon-coefficients]"));
  CHECK(contains(error("--hardest 0.5"), "[--hardest]"));
  CHECK(contains(error("--recipe airbench96-faster --hardest 0"), "[--hardest]"));
  CHECK(contains(error("--recipe airbench96-faster --mixup 1"), "[--hardest]"));
  CHECK(contains(error("--network airbench96 --depth 8"), "[--depth]"));
  CHECK(contains(error("--tta 4"), "[--tta]"));
  CHECK(contains(error("--tta 3 --logical-ranks 2"), "[--tta]"));
  CHECK(contains(error("--ema-schedule lookahead"), "[--ema-schedule]"));
}
