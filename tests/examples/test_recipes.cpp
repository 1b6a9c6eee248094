// SPDX-License-Identifier: MIT
// Tests the recipes of train_imagenet and the sizes of its images.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <tutti/optim/schedule_point.hpp>

#include "data/temp_folder.hpp"
#include "tools/trainer/check.hpp"
#include "tools/trainer/check_batch.hpp"
#include "tools/trainer/cli.hpp"
#include "tools/trainer/image_sizes.hpp"
#include "tools/trainer/recipe.hpp"
#include "tools/trainer/recipes.hpp"

using namespace tutti;
using namespace tutti::trainer;
using test::contains;
using test::message_of;
using tutti::trainer::detail::few_updates;

namespace {

RunOptions options(const std::string& line) {
  std::istringstream in("train_imagenet --synthetic " + line);
  std::vector<std::string> words;
  for (std::string w; in >> w;) words.push_back(w);
  std::vector<char*> argv;
  for (auto& a : words) argv.push_back(a.data());
  ::unsetenv("TUTTI_DATA");
  auto o = parse_command_line(static_cast<int>(argv.size()), argv.data(), Program::train_imagenet);
  REQUIRE(o);
  check(*o);
  return *o;
}
std::string error(const std::string& line) {
  return message_of<UsageError>([&] { options(line); });
}
std::string notes(const RunOptions& o) {
  std::string all;
  for (const auto& n : o.notes) all += n + "\n";
  return all;
}

// The rate of the first step of an epoch, from 0, of runs with 10 steps per epoch.
double rate(const RunOptions& o, std::int64_t epoch) {
  return make_schedule(o, 10)(SchedulePoint{10 * epoch, 10, 10 * o.epochs, o.global_batch_size, 1});
}

}  // namespace

TEST_CASE("every recipe sets its batch, epochs and rate, and is listed with its source") {
  const std::string list = recipe_list(Program::train_imagenet);
  for (const Recipe& r : recipes_of(Program::train_imagenet)) {
    CAPTURE(r.name);
    const RunOptions o = options(std::string("--recipe ") + r.name);
    // finetune has a rate for any batch.
    if (r.batch > 0) CHECK(o.global_batch_size == r.batch);
    if (r.rate > 0) CHECK(*o.lr == r.rate);
    CHECK(o.epochs == r.epochs);
    CHECK_FALSE(contains(notes(o), "in place of"));
    CHECK(contains(list, r.name));
    CHECK(contains(list, r.source));
    CHECK(contains(list, r.published));
  }
  CHECK(contains(recipe_list(Program::train_cifar10), "fast"));
  CHECK_FALSE(contains(recipe_list(Program::train_cifar10), "goyal"));
  CHECK(contains(error("--recipe rsb-a4"), "rsb-a3"));
  CHECK(contains(error("--recipe goyal --preset torchvision"), "[--recipe]"));
  // A number of steps replaces the epochs of a recipe, but not those of the user.
  CHECK(options("--recipe goyal --num-batches 7").num_batches == 7);
  CHECK(options("--recipe goyal --num-batches 7 --num-epochs 2").num_batches == 0);
}

TEST_CASE("rates of the recipes are those of torchvision's and timm's schedules") {
  const double pi = 3.14159265358979323846;
  // LinearLR from 0.01 for 5 epochs, then CosineAnnealingLR(T_max = 595), stepped once per epoch.
  const RunOptions tv = options("--recipe torchvision-v2");
  CHECK(rate(tv, 0) == doctest::Approx(0.005));
  CHECK(rate(tv, 2) == doctest::Approx(0.5 * (0.01 + 0.99 * 2 / 5)));
  CHECK(rate(tv, 5) == doctest::Approx(0.5));
  CHECK(rate(tv, 300) == doctest::Approx(0.25 * (1 + std::cos(pi * 295 / 595))));
  CHECK(tv.ema_schedule == "torchvision");
  // CosineLRScheduler(t_initial = 100, lr_min = 1e-6, warmup_t = 5, warmup_lr_init = 1e-4), no warmup_prefix.
  const RunOptions a3 = options("--recipe rsb-a3");
  CHECK(rate(a3, 0) == doctest::Approx(1e-4));
  CHECK(rate(a3, 3) == doctest::Approx(1e-4 + 3 * (8e-3 - 1e-4) / 5));
  CHECK(rate(a3, 5) == doctest::Approx(1e-6 + 0.5 * (8e-3 - 1e-6) * (1 + std::cos(pi * 5 / 100))));
  CHECK(rate(a3, 99) == doctest::Approx(1e-6 + 0.5 * (8e-3 - 1e-6) * (1 + std::cos(pi * 99 / 100))));
  const RunOptions g = options("--recipe goyal");
  CHECK(rate(g, 0) == doctest::Approx(0.1));
  CHECK(rate(g, 29) == doctest::Approx(3.2));
  CHECK(rate(g, 30) == doctest::Approx(0.32));
  CHECK(rate(g, 80) == doctest::Approx(0.0032));
}

TEST_CASE("FFCV's recipes have the rates and sizes of its files") {
  struct File {  // rn50_configs: epochs, start_ramp, end_ramp
    int epochs, start, end;
  };
  for (const File& f : {File{16, 11, 13}, {24, 17, 20}, {32, 23, 27}, {40, 29, 34}, {56, 41, 48}, {88, 65, 76}}) {
    const RunOptions o = options("--recipe ffcv-" + std::to_string(f.epochs));
    CAPTURE(f.epochs);
    const auto steps = image_size_steps(o);
    for (int epoch = 0; epoch < f.epochs; ++epoch) {
      const double at = std::clamp((epoch - f.start) / static_cast<double>(f.end - f.start), 0.0, 1.0);
      const auto want = static_cast<std::int64_t>(std::nearbyint((160 + 32 * at) / 32)) * 32;
      std::int64_t size = 0;
      for (const auto& s : steps)
        if (s.epoch <= epoch) size = s.size;
      CHECK(size == want);
      const double rises = 1.7 * (1e-4 + (1 - 1e-4) * epoch / 2);
      CHECK(rate(o, epoch) == doctest::Approx(epoch <= 2 ? rises : 1.7 * (f.epochs - epoch) / (f.epochs - 2.0)));
    }
    CHECK(o.eval_size == 256);
    CHECK(o.blur_pool);
  }
}

TEST_CASE("Mosaic ML's recipes have the sizes of Composer's progressive resizing in the middle of each epoch") {
  struct File {  // initial_scale, delay_fraction; finetune_fraction is 0.2
    const char* name;
    double scale, delay;
  };
  for (const File& f : {File{"mosaic-mild", 0.5, 0.4}, {"mosaic-medium", 0.5, 0.4}, {"mosaic-hot", 0.6, 0.2}}) {
    const RunOptions o = options(std::string("--recipe ") + f.name);
    CAPTURE(f.name);
    const auto steps = image_size_steps(o);
    for (std::int64_t epoch = 0; epoch < o.epochs; ++epoch) {
      const double done = (static_cast<double>(epoch) + 0.5) / static_cast<double>(o.epochs);
      const double at = done < f.delay ? 0 : std::min((done - f.delay) / (1 - 0.2 - f.delay), 1.0);
      std::int64_t size = 0;
      for (const auto& s : steps)
        if (s.epoch <= epoch) size = s.size;
      CHECK(size == std::llround(176 * (f.scale + (1 - f.scale) * at) / 4) * 4);
    }
    CHECK(steps.back().size == 176);
    // The decay of SGD shrinks weights by 5e-4 in a step at the peak rate, as the decoupled decay does.
    CHECK(*o.wd * 2.048 / (1 - *o.mom) == doctest::Approx(5e-4));
    CHECK(std::pow(o.ema_decay, 5) == doctest::Approx(0.5));
    CHECK(rate(o, 0) == 0);
    CHECK(rate(o, 8) == doctest::Approx(2.048));
  }
  const RunOptions medium = options("--recipe mosaic-medium"), hot = options("--recipe mosaic-hot");
  CHECK(trainer_options(medium).sam.rho == 0.5);
  CHECK(trainer_options(medium).sam.every == 10);
  CHECK(trainer_options(hot).sam.every == 5);
  CHECK(trainer_options(options("--recipe mosaic-mild")).sam.rho == 0);
  CHECK(trainer_options(options("--recipe mosaic-hot --sam 0")).sam.rho == 0);
}

TEST_CASE("MLPerf's recipe has the numbers of its configuration") {
  const RunOptions o = options("--recipe mlperf");
  CHECK(o.crop_area == 0.05);
  CHECK(o.lars_mlperf);
  // The first step is step 1.
  CHECK(rate(o, 0) == doctest::Approx(0.05 * 11));
  CHECK(rate(o, 1) == doctest::Approx(0.55 * 11));
  CHECK(rate(o, 2) == doctest::Approx(11 * std::pow(349 / 350.0, 2)));
  CHECK(rate(o, 36) == doctest::Approx(11 * std::pow(9 / 350.0, 2)));
  CHECK(rate(options("--recipe mlperf --lr-first-step 0"), 1) == doctest::Approx(5.5));
  CHECK(contains(error("--num-epochs 1 --lr-first-step 2"), "[--lr-first-step]"));
  CHECK(contains(error("--num-epochs 1 --lars-mlperf"), "[--lars-mlperf] expected --optimizer lars"));
  CHECK(*options("--recipe mlperf --batch-size 1600").lr == 11);
}

TEST_CASE("recipes decay the parameters that their originals decay, and --decay-of any") {
  Schema seen;
  seen.channels = 3;
  seen.height = seen.width = 32;
  seen.classes = 10;
  seen.mean = seen.stddev = {1, 1, 1};
  const auto decays = [&](const std::string& line, const std::string& name) {
    for (const Value& v : make_model(options(line), seen).values)
      if (v.name == name) return v.decay;
    FAIL(name);
    return false;
  };
  for (const char* name : {"layer2.0.downsample.1.weight", "layer2.0.downsample.1.bias", "fc.bias", "conv1.weight"})
    CHECK(decays("--recipe ffcv-16", name));
  for (const char* name : {"bn1.weight", "layer2.0.bn3.bias"}) CHECK_FALSE(decays("--recipe ffcv-16", name));
  for (const char* name : {"layer1.0.downsample.2.weight", "layer2.0.downsample.2.bias"})  // shortcuts of ResNet-50-D
    CHECK(decays("--recipe ffcv-16 -m resnet50d", name));
  CHECK_FALSE(decays("--recipe ffcv-16 -m resnet50d", "layer2.0.bn3.weight"));
  CHECK(options("--recipe ffcv-16 -m mobilenet_v2 --blur-pool false").decay_of.empty());
  CHECK_FALSE(decays("--recipe goyal", "layer2.0.downsample.1.weight"));
  CHECK(decays("--recipe mlperf", "fc.bias"));
  CHECK_FALSE(decays("--recipe mlperf", "bn1.bias"));
  CHECK(decays("--num-epochs 1 --decay-of bn1,layer3", "bn1.bias"));
  CHECK_FALSE(decays("--num-epochs 1 --decay-of bn1,layer3", "layer1.0.bn1.bias"));
  CHECK(contains(message_of<UsageError>([&] { make_model(options("--num-epochs 1 --decay-of bn9"), seen); }),
                 "[--decay-of] expected a pattern"));
}

TEST_CASE("another batch scales the rate by the rule of the recipe, and options replace what it sets") {
  const RunOptions a3 = options("--recipe rsb-a3 --batch-size 512");
  CHECK(*a3.lr == doctest::Approx(0.004));
  CHECK(contains(notes(a3), "512 images per update in place of 2048, so the rate is 0.004 in place of 0.008"));
  const RunOptions tv = options("--recipe torchvision-v2 --batch-size 256 --mixup 0.4 --num-epochs 3");
  CHECK(*tv.lr == doctest::Approx(0.125));
  CHECK(*tv.warmup_lr == doctest::Approx(0.00125));
  CHECK(tv.mixup == 0.4);
  CHECK(tv.cutmix == 1);
  CHECK(contains(notes(tv), "--num-epochs 3 (not 600)"));
  CHECK(contains(notes(tv), "--mixup 0.4 (not 0.2)"));
  CHECK_FALSE(contains(notes(tv), "--cutmix"));
  const RunOptions given = options("--recipe goyal --lr 1");
  CHECK(*given.lr == 1);
  CHECK(contains(notes(given), "--lr 1 replaces its rate, 3.2 for 8192"));
  CHECK(options("--recipe goyal --batch-size 128 --accumulate 4").global_batch_size == 512);
  CHECK(contains(error("--recipe rsb-a3 --batch-size auto"), "[--batch-size] expected a number with --batch-of job"));
}

TEST_CASE("a note says that an epoch has few updates, and which batch makes them more") {
  const RunOptions a3 = options("--recipe rsb-a3");
  CHECK(
      contains(few_updates(a3, 3200),
               "3200 images has 2 updates of 2048 images, with which a net learns little: --batch-size 128 makes 25"));
  CHECK(contains(few_updates(a3, 3200), "the rate follows"));
  CHECK(few_updates(a3, 1281167).empty());
  CHECK_FALSE(contains(few_updates(options("--recipe rsb-a3 --lr 0.01"), 3200), "the rate follows"));
  CHECK(few_updates(options("--num-epochs 30 --batch-size 32"), 96).empty());
  CHECK(few_updates(options("--num-batches 30 --batch-size 512"), 96).empty());
  CHECK(contains(few_updates(options("--num-epochs 3 --batch-size 512 --accumulate 2"), 3200),
                 "--batch-size 64 makes 25"));
  CHECK(
      contains(few_updates(options("--num-epochs 3 --global-batch-size 512"), 3200), "--global-batch-size 128 makes"));
}

TEST_CASE("the warm-up of a recipe gives way to a schedule with a rise of its own, but not that of the user") {
  CHECK(options("--recipe finetune --lr-decay-mode one_cycle").warmup_epochs == 0);
  CHECK(options("--recipe goyal --lr-decay-mode one-cycle").warmup_epochs == 0);
  CHECK(options("--recipe finetune --lr-decay-mode poly").warmup_epochs == 1);
  CHECK(contains(error("--recipe goyal --lr-decay-mode one_cycle --warmup-epochs 2"), "[--warmup-epochs] expected 0"));
}

TEST_CASE("an option that turns off a part of a recipe turns off what belongs to it") {
  CHECK(options("--recipe torchvision-v2 --ema-decay 0").ema_every == 1);
  CHECK(options("--recipe mosaic-mild --ema-decay 0").ema_schedule == "counted");
  CHECK_FALSE(options("--recipe mosaic-mild --bce-loss false").bce_sum);
  CHECK_FALSE(options("--recipe rsb-a2 --bce-loss false").bce_target_thresh.has_value());
  // Values that the recipe does not set are the user's, and have no effect.
  CHECK(contains(error("--recipe torchvision-v2 --ema-decay 0 --ema-every 4"), "[--ema-every]"));
  CHECK(contains(error("--recipe rsb-a2 --bce-loss false --bce-target-thresh 0.3"), "[--bce-target-thresh]"));
  CHECK(contains(error("--recipe mosaic-hot --sam 0 --sam-every 7"), "[--sam-every]"));
  CHECK(contains(error("--recipe goyal --muon-steps 3"), "[--muon-steps]"));
  CHECK(contains(error("--recipe goyal --rest-lr 3"), "[--rest-lr]"));
  CHECK(options("--recipe mosaic-hot --sam 0").sam == 0);
}

TEST_CASE("sizes of images by epoch") {
  const RunOptions o = options("--num-epochs 16 --image-size 160 --image-size-steps 11:176,12:192 --eval-size 256");
  CHECK(image_size_steps(o) == std::vector<ImageSizeStep>{{0, 160}, {11, 176}, {12, 192}});
  CHECK(trainer_options(o).image_sizes == std::vector<ImageSize>{{160, 160}, {176, 176}, {192, 192}});
  RunOptions of_folder = o;
  of_folder.program = Program::tutti_train;
  CHECK(trainer_options(of_folder).image_sizes.size() == 3);
  CHECK_FALSE(contains(notes(o), "--image-size-steps: "));
  CHECK(contains(notes(options("--num-epochs 12 --image-size-steps 12:192")), "the run ends after epoch 12"));
  CHECK(contains(notes(o), "160 pixels on each side, 176 after 11 epochs, 192 after 12 epochs"));
  CHECK(options("--num-epochs 2 --image-size 160 --image-size-steps 1:192").eval_size == 192);
  CHECK(options("--num-epochs 2 --image-size 160").eval_size == 160);
  CHECK(trainer_options(options("--num-epochs 2 --image-size 160")).image_sizes.empty());
  for (const char* bad : {"0:192", "2:16", "2", "2:192,1:160", "a:192", "2:192x", "2:192,"}) {
    CAPTURE(bad);
    CHECK(contains(error(std::string("--num-epochs 3 --image-size-steps ") + bad), "[--image-size-steps]"));
  }
  CHECK(contains(error("--num-epochs 3 --eval-size 16"), "[--eval-size]"));
}

TEST_CASE("--col-out leaves rows and columns out of training images, and the trainer plans for what stays") {
  const RunOptions o = options("--num-epochs 16 --image-size 160 --image-size-steps 11:176 --col-out 0.05");
  CHECK(loader_options(o, true, 0, 1).col_out == ColOut{0.05, 0.05});
  CHECK_FALSE(loader_options(o, false, 0, 1).col_out.any());
  CHECK(trainer_options(o).image_sizes == std::vector<ImageSize>{{152, 152}, {167, 167}});
  CHECK(contains(notes(o), "176 after 11 epochs; of 176 --col-out leaves 167; an evaluation"));
  CHECK(trainer_options(options("--num-epochs 2 --col-out 0.5")).image_sizes == std::vector<ImageSize>{{112, 112}});
  // The loader's memory holds the images as they are read.
  CHECK(largest_image_bytes(o, Schema{.channels = 3, .height = 160, .width = 160, .class_names = {}}) == 3 * 176 * 176);
  CHECK(options("--recipe mosaic-hot").col_out == 0.05);
  CHECK(options("--recipe mosaic-medium").col_out == 0);
  CHECK(contains(error("--num-epochs 3 --col-out 0.95"), "[--col-out]"));
}

TEST_CASE("options of mixed images and of the loss") {
  const RunOptions o = options("--num-epochs 1 --mixup-alpha 0.2 --cutmix 1 --mixup-switch-prob 0.3 --bce-loss");
  CHECK(o.mixup == 0.2);
  CHECK(o.mix_switch == 0.3);
  const Schema seen = [] {
    Schema s;
    s.channels = 3;
    s.height = s.width = 32;
    s.classes = 10;
    s.mean = s.stddev = {1, 1, 1};
    return s;
  }();
  const Graph g = make_model(o, seen);
  CHECK(g[g.labels].shape.rank() == 2);
  CHECK(loader_options(o, true, 0, 1).mix != nullptr);
  CHECK(loader_options(o, false, 0, 1).mix == nullptr);
  // ResNet-D's shortcuts fit if a stage has an odd number of pixels: 18, 9 and 5.
  Schema odd = seen;
  odd.height = odd.width = 72;
  CHECK_NOTHROW((void)make_model(options("--num-epochs 1 --model resnet50d --image-size 72"), odd));
  const RunOptions plain = options("--num-epochs 1");
  const Graph p = make_model(plain, seen);
  CHECK(p[p.labels].shape.rank() == 1);
  const RunOptions other = options("--num-epochs 1 --model mobilenet_v2");
  const Graph m = make_model(other, seen);
  for (const Value& v : m.values)
    if (v.name == "classifier.1.bias") CHECK(v.decay == other.decay_biases);
  for (const auto& [line, option] :
       std::vector<std::pair<std::string, std::string>>{{"--mixup -1", "--mixup"},
                                                        {"--mixup nan", "--mixup"},
                                                        {"--cutmix 1e-5", "--cutmix"},
                                                        {"--mix-probability 0.5", "--mix-probability"},
                                                        {"--mixup 1 --mix-switch 0.1", "--mix-switch"},
                                                        {"--mixup 1 --mix-pairs random", "--mix-pairs"},
                                                        {"--mix-pairs previous", "--mix-pairs"},
                                                        {"--model convnext_tiny --bn-eps 1e-3", "--bn-eps"},
                                                        {"--bce-sum", "--bce-sum"},
                                                        {"--model mobilenet_v2 --noadv-conv-init", "--adv-conv-init"},
                                                        {"--model convnext_tiny --bn-momentum 0.8", "--bn-momentum"},
                                                        {"--bce-loss --bce-target-thresh 1", "--bce-target-thresh"}}) {
    CAPTURE(line);
    CHECK(contains(error("--num-epochs 1 " + line), "[" + option + "]"));
  }
}
