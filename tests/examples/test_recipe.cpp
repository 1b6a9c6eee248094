// SPDX-License-Identifier: MIT
// Tests the options that --recipe fast sets.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <tutti/datasets/synthetic/synthetic.hpp>

#include "data/temp_folder.hpp"
#include "tools/trainer/check.hpp"
#include "tools/trainer/cli.hpp"
#include "tools/trainer/options_json.hpp"
#include "tools/trainer/recipe.hpp"

using namespace tutti;
using namespace tutti::trainer;
using test::contains;
using test::message_of;

namespace {

RunOptions parsed(const std::string& line) {
  std::istringstream in("train_cifar10 " + line);
  std::vector<std::string> words;
  for (std::string w; in >> w;) words.push_back(w);
  std::vector<char*> argv;
  for (auto& a : words) argv.push_back(a.data());
  ::unsetenv("TUTTI_DATA");
  const auto o = parse_command_line(static_cast<int>(argv.size()), argv.data());
  REQUIRE(o);
  return *o;
}
RunOptions options(const std::string& line) {
  RunOptions o = parsed(line);
  check(o);
  return o;
}
std::string error(const std::string& line) {
  return message_of<UsageError>([&] { options(line); });
}

}  // namespace

TEST_CASE("the recipe sets defaults that options override") {
  RunOptions o = options("--recipe fast");
  CHECK(o.network == "cifar_fast");
  CHECK(o.depth == 8);
  CHECK(o.epochs == 10);
  CHECK(o.batch_size == 1000);
  CHECK(o.optimizer == "nag");
  CHECK(o.pad_mode == "reflect");
  CHECK(o.label_smoothing == 0.2);
  CHECK(o.pad_size == 2);
  CHECK(o.precision == "bf16");
  CHECK(o.tta == 2);
  CHECK(o.ema_decay == 0.97);
  CHECK(*o.lr == doctest::Approx(1.5 * 1000 / 1024));
  CHECK(*o.warmup_epochs == doctest::Approx(2.3));
  CHECK(*o.warmup_lr == doctest::Approx(0.2 * *o.lr));
  CHECK(*o.lr_end == doctest::Approx(0.07 * *o.lr));
  CHECK(*o.wd * *o.lr == doctest::Approx(0.0153 / 11.5 * 1.5 * 1000 / 1024));

  o = options("--epochs 20 --recipe fast --batch-size 512 --precision f32 --tta 0 --width 0.5");
  CHECK(o.epochs == 20);
  CHECK(*o.lr == doctest::Approx(0.75));
  CHECK(*o.warmup_epochs == doctest::Approx(4.6));
  CHECK(o.precision == "f32");
  CHECK(o.tta == 0);
  o = options("--recipe fast --lr 2");
  CHECK(*o.lr_end == doctest::Approx(0.14));
  o = options("--recipe fast --pad-mode constant");
  CHECK(o.pad_mode == "constant");
  CHECK(o.fill_value == 128);
  o = options("--recipe fast --network resnet --depth 20");
  CHECK(o.network == "resnet");
  CHECK(o.depth == 20);
  CHECK(options("").warmup_lr == 0.001);
}

TEST_CASE("the recipe's learning rate rises linearly and then falls linearly") {
  const RunOptions o = options("--recipe fast --lr 1");
  const Schedule rate = make_schedule(o, 50);
  const auto at = [&](std::int64_t step) { return rate(SchedulePoint{step, 50, 500, 1000, 1}); };
  CHECK(at(0) == doctest::Approx(0.2));
  CHECK(at(115) == doctest::Approx(1));
  CHECK(at(57) == doctest::Approx(0.2 + 0.8 * 57 / 115));
  CHECK(at(500) == doctest::Approx(0.07));
  CHECK(at(307) == doctest::Approx(0.07 + 0.93 * 193 / 385));
}

TEST_CASE("the printed configuration of the recipe gives the same options when it is read") {
  test::TempFolder folder;
  const auto file = (folder / "a.toml").string();
  for (const char* line : {"--recipe fast", "--recipe fast --width 0.25 --epochs 3 --lr 0.7 --tta 1",
                           "--network cifar_fast --warmup-lr 0.5"}) {
    CAPTURE(line);
    RunOptions o = parsed(line);
    test::write_text(file, config_text(o));
    RunOptions again = parsed("--config " + file);
    CHECK(config_text(again) == config_text(o));
    check(o);
    check(again);
    CHECK(options_json(o) == options_json(again));
    test::write_text(file, config_text(o));
    CHECK(config_text(options("--config " + file)) == config_text(o));
  }
}

TEST_CASE("options that conflict with the recipe are refused") {
  CHECK(contains(error("--recipe slow"), "[--recipe] expected fast"));
  CHECK(contains(error("--recipe fast --preset cifar-resnet50-28"), "[--recipe]"));
  CHECK(contains(error("--recipe fast --depth 32"), "[--depth]"));
  CHECK(contains(error("--width 0.5"), "[--width]"));
  CHECK(contains(error("--recipe fast --width 0"), "[--width]"));
  CHECK(contains(error("--tta 4"), "[--tta]"));
  CHECK(contains(error("--recipe fast --initializer xavier"), "[--initializer]"));
  CHECK(contains(error("--recipe fast --zero-gamma"), "[--zero-gamma]"));
}

TEST_CASE("the first layer whitens the training images, and is random if there are none") {
  const RunOptions o = options("--recipe fast --dataset synthetic --width 0.1");
  const Synthetic images({.size = 300, .seed = 4, .learnable = true});
  const AnyDataset train = images;
  const Schema schema = train.schema();
  const auto whitening_of = [](const Graph& g) {
    for (const Value& v : g.values)
      if (v.name == "whitening.weight" && v.storage == Storage::parameter) {
        CHECK_FALSE(v.trainable);
        return v.init;
      }
    return Initializer{};
  };
  CHECK(whitening_of(make_model(o, schema)).kind == Init::he_normal);
  const Initializer init = whitening_of(make_model(o, schema, &train));
  REQUIRE(init.kind == Init::values);
  models::PatchMoments moments(3, 2);
  for (std::int64_t i = 0; i < images.size(); ++i) {
    std::vector<std::uint8_t> image(static_cast<std::size_t>(schema.image_bytes()));
    std::int32_t label = 0;
    Rng rng(0, Purpose::user);
    images.read(i, rng, Sample{image, label});
    // Leaves out the pixels at the edges, which a shift may remove.
    moments.add(image, 32, 32, 2);
  }
  const std::vector<float> inverse(3, 1 / schema.stddev[0]);
  CHECK(*init.given == models::whitening_weights(moments, schema.mean, inverse));
  // Widths are rounded to whole vectors of 8 channels.
  for (const Value& v : make_model(o, schema).values)
    if (v.name == "layer2.conv2.weight" && v.storage == Storage::parameter) CHECK(v.shape == Shape{24, 24, 3, 3});
}
