// SPDX-License-Identifier: MIT
// Tests command lines that are accepted, and the presets, schedules and log lines that they select.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "data/temp_folder.hpp"
#include "option_lines.hpp"
#include "tools/trainer/check.hpp"
#include "tools/trainer/mxnet_lines.hpp"
#include "tools/trainer/recipe.hpp"

using namespace tutti;
using namespace tutti::trainer;
using namespace tutti::trainer::lines;
using test::contains;

TEST_CASE("valid command lines are accepted") {
  struct Case {
    const char* line;
    std::function<bool(const RunOptions&)> holds;
  };
  const Case cases[] = {
      {"",
       [](const auto& o) {
         return o.depth == 20 && o.batch_size == 64 && o.lr == 0.1 && o.pad_size == 1 && o.optimizer == "nag";
       }},
      {"--depth 32", [](const auto& o) { return o.depth == 32; }},
      {"--num-layers=32", [](const auto& o) { return o.depth == 32; }},
      {"--num_layers 32", [](const auto& o) { return o.depth == 32; }},
      {"--epochs 3 --epochs 5", [](const auto& o) { return o.epochs == 5; }},
      {"--epochs 5 --num-epochs 5", [](const auto& o) { return o.epochs == 5; }},
      {"--num-epochs 3 --num_epochs 5 --epochs=5", [](const auto& o) { return o.epochs == 5; }},
      {"--batch_size 64", [](const auto& o) { return o.batch_size == 64 && o.global_batch_size == 64; }},
      {"--batch-size 32", [](const auto& o) { return o.lr == 0.05; }},
      {"--batch-size 64 --lr 0.3", [](const auto& o) { return o.lr == 0.3; }},
      {"--batch-size 32 --accumulate 4", [](const auto& o) { return o.global_batch_size == 128 && o.lr == 0.2; }},
      {"--center-epochs 1", [](const auto& o) { return o.centre_epochs == 1; }},
      {"--epochs 60", [](const auto& o) { return o.pad_size == 2; }},
      {"--epochs 61", [](const auto& o) { return o.pad_size == 4; }},
      {"--epochs 5 --pad-size 4", [](const auto& o) { return o.pad_size == 4 && o.pad_mode == "constant"; }},
      {"--aa rand-m7-mstd0.5-inc1 --reprob 0.25 --remode pixel --recount 3 --aug-repeats 3",
       [](const auto& o) {
         return o.auto_augment == "rand-m7-mstd0.5-inc1" && o.random_erase == 0.25 && o.erase_mode == "pixel" &&
                o.erase_count == 3 && o.repeated_aug == 3;
       }},
      {"--auto-augment trivial --interpolation nearest --jitter-brightness 0.14 --jitter-contrast 0.13",
       [](const auto& o) { return o.interpolation == "nearest" && o.jitter_contrast == 0.13; }},
      {"--pad-mode Reflect", [](const auto& o) { return o.pad_mode == "reflect"; }},
      {"--global-batch-size 256 --batch-size 8", [](const auto& o) { return o.batch_size == 256; }},
      {"--global-batch-size 256 --accumulate 3", [](const auto& o) { return o.batch_size == 86; }},
      {"--macrobatch-size 1000", [](const auto& o) { return o.accumulate == 16 && o.global_batch_size == 1024; }},
      {"--dtype float32", [](const auto& o) { return o.precision == "f32"; }},
      {"--dtype bfloat16", [](const auto& o) { return o.precision == "bf16"; }},
      {"--dtype float16 --backend cuda",
       [](const auto& o) { return o.precision == "f16" && o.loss_scale == "dynamic"; }},
      {"--precision BF16", [](const auto& o) { return o.precision == "bf16"; }},
      {"--data /x", [](const auto& o) { return o.data_dir == "/x"; }},
      {"--data-dir /x", [](const auto& o) { return o.data_dir == "/x"; }},
      {"--data_dir=/x", [](const auto& o) { return o.data_dir == "/x"; }},
      {"--gpus --network resnet_preact",
       [](const auto& o) { return o.network == "resnet_preact" && o.gpus == "" && o.backend == "auto"; }},
      {"--gpus= --data= --depth 32", [](const auto& o) { return o.depth == 32 && o.gpus == "" && o.data_dir.empty(); }},
      {"--depth 32 --gpus", [](const auto& o) { return o.depth == 32 && o.gpus == ""; }},
      {"--train-dir r", [](const auto& o) { return o.run_dir == "r" && o.log_dir.empty(); }},
      {"--log_dir r", [](const auto& o) { return o.run_dir == "r" && o.log_dir == "r"; }},
      {"--train_dir a --log_dir b", [](const auto& o) { return o.run_dir == "a" && o.log_dir == "b"; }},
      {"", [](const auto& o) { return o.tensorboard; }},
      {"--no-tensorboard", [](const auto& o) { return !o.tensorboard; }},
      {"--data-train a.rec --data-train-idx= --data-val b --decoder stb",
       [](const auto& o) { return o.data_train == "a.rec" && o.data_val == "b" && o.decoder == "stb"; }},
      {"--run-dir r --resume", [](const auto& o) { return o.resume == "latest"; }},
      {"--resume --run-dir r", [](const auto& o) { return o.resume == "latest" && o.run_dir == "r"; }},
      {"--run-dir r --resume=best", [](const auto& o) { return o.resume == "best"; }},
      {"--resume=runs/a", [](const auto& o) { return o.resume == "runs/a"; }},
      {"--random-mirror 0", [](const auto& o) { return !o.random_mirror && o.random_crop; }},
      {"--random-mirror 1 --random-crop=0", [](const auto& o) { return o.random_mirror && !o.random_crop; }},
      {"--no-random-mirror --norandom-crop", [](const auto& o) { return !o.random_mirror && !o.random_crop; }},
      {"--no_random_mirror", [](const auto& o) { return !o.random_mirror; }},
      {"--zero-gamma --depth 8", [](const auto& o) { return o.zero_gamma && o.depth == 8; }},
      {"--zero-gamma --no-zero-gamma", [](const auto& o) { return !o.zero_gamma; }},
      {"--benchmark 1", [](const auto& o) { return o.dataset == "synthetic"; }},
      {"--dataset fashion-mnist", [](const auto& o) { return o.dataset == "fashion_mnist"; }},
      {"--network resnet --depth 18", [](const auto& o) { return o.network == "resnet_imagenet"; }},
      {"--seed 18446744073709551615", [](const auto& o) { return o.seed == UINT64_MAX; }},
      {"--epochs 010", [](const auto& o) { return o.epochs == 10; }},
      {"--optimizer adamw", [](const auto& o) { return o.lr == 0.001 && o.wd == 0.05; }},
      {"--optimizer adam", [](const auto& o) { return o.lr == 0.001 && o.wd == 0.0; }},
      {"--optimizer adam --opt-betas 0.8,0.95 --opt-eps 1e-6",
       [](const auto& o) {
         const auto made = std::get<AdamwUpdate>(make_optimizer(o).update_op());
         return made.l2 && made.beta1 == 0.8 && made.beta2 == 0.95 && made.eps == 1e-6;
       }},
      {"--optimizer lamb --batch-size 512", [](const auto& o) { return o.lr == 0.0025 && o.wd == 0.02; }},
      {"--optimizer lamb --trust-clip --max-grad-norm 0 --opt-betas 0.8,0.95",
       [](const auto& o) {
         const AnyOptimizer any = make_optimizer(o);
         const auto made = std::get<LambUpdate>(any.update_op());
         return made.trust_clip && made.beta1 == 0.8 && made.eps == 1e-6 && any.max_grad_norm() == 0;
       }},
      {"--optimizer muon", [](const auto& o) { return o.lr == 0.02 && o.rest_lr == 0.02 && o.mom == 0.95; }},
      {"--optimizer muon --lr 0.24 --mom 0.6 --rest-lr 0.06 --rest-mom 0.85 --muon-steps 3 --muon-scale none "
       "--muon-normalize",
       [](const auto& o) {
         const AnyOptimizer any = make_optimizer(o);
         const auto made = std::get<MuonUpdate>(any.update_op());
         return any.slots() == 1 && made.momentum == 0.6 && made.steps == 3 && made.normalize && !made.bf16 &&
                made.scale == MuonUpdate::Scale::none && any.rest_rate() == 0.25 &&
                std::get<SgdUpdate>(made.rest).momentum == 0.85;
       }},
      {"--optimizer muon --muon-rest adamw --opt-betas 0.8,0.95 --muon-products bf16",
       [](const auto& o) {
         const AnyOptimizer any = make_optimizer(o);
         const auto made = std::get<MuonUpdate>(any.update_op());
         return any.slots() == 2 && made.bf16 && std::get<AdamwUpdate>(made.rest).beta2 == 0.95 && o.rest_lr == 0.001;
       }},
      {"--optimizer lbsgd", [](const auto& o) { return o.optimizer == "sgd" && o.warmup_epochs == 5.0; }},
      {"--optimizer larc", [](const auto& o) { return o.eta == 0.013; }},
      {"--initializer default", [](const auto& o) { return o.initializer == "he"; }},
      {"--top-k 0", [](const auto& o) { return o.top_k == 5; }},
      {"--lr-schedule step", [](const auto& o) { return o.lr_step_epochs == "7.5,11.25"; }},
      {"--lr-mode poly", [](const auto& o) { return o.lr_end == 1e-5; }},
      {"--lr-schedule onecycle --epochs 10 --lr 1 --pct-start 0.5 --anneal-strategy linear",
       [](const auto& o) {
         const Schedule s = make_schedule(o, 10);
         return o.warmup_epochs == 0.0 && s({49, 10, 100, 64, 1}) == 1 && s({0, 10, 100, 64, 1}) == 0.04;
       }},
      {"--lr-schedule one_cycle --cycle-momentum --base-momentum 0.8 --pct-start 0.5",
       [](const auto& o) {
         const auto momentum = fit_options(o, 6400).momentum.value();
         return std::abs(momentum({0, 10, 100, 64, 1}) - 0.95) < 1e-12 &&
                std::abs(momentum({49, 10, 100, 64, 1}) - 0.8) < 1e-12;
       }},
      {"--lr-schedule one_cycle", [](const auto& o) { return !fit_options(o, 6400).momentum; }},
      {"--sam 0.5 --sam-every 10",
       [](const auto& o) {
         const TrainerOptions t = trainer_options(o, 6400);
         return t.sam.perturbs(10) && !t.sam.perturbs(11) && t.sam.rho == 0.5;
       }},
      {"--lr-schedule cosine --lr 1 --epochs 10 --warmup-epochs 2 --warmup-lr 0 --lr-updates epoch --no-warmup-prefix",
       [](const auto& o) {
         const Schedule s = make_schedule(o, 10);
         return s({19, 10, 100, 64, 1}) == 0.5 && std::abs(s({59, 10, 100, 64, 1}) - 0.5) < 1e-12;
       }},
      {"--ema-decay 0.998 --ema-schedule torchvision --epochs 10 --warmup-epochs 2",
       [](const auto& o) {
         const TrainerOptions t = trainer_options(o, 6400);
         return std::abs(t.ema_decay - (1 - 0.002 * 64 * 32 / 10)) < 1e-12 && t.ema.every == 32 && t.ema.epoch == 100 &&
                t.ema.copies == 201;
       }},
      {"--ema-decay 0.9 --ema-schedule timm --ema-every 5",
       [](const auto& o) {
         const EmaSchedule s = make_ema_schedule(o, 6400);
         return s.warmup == EmaSchedule::Warmup::power && s.every == 5 && s.copies == 1;
       }},
      {"--lr-factor 0.2", [](const auto& o) { return o.lr_schedule == "steps" && o.lr_factor == 0.2; }},
      {"--lr-step-epochs pow2", [](const auto& o) { return o.lr_schedule == "steps"; }},
      {"--epochs 1", [](const auto& o) { return o.warmup_epochs == 0.25; }},
      {"--model-prefix m --load-epoch 3", [](const auto& o) { return o.run_dir == "m" && o.keep == 1'000'000; }},
      {"--kv-store local", [](const auto& o) { return o.strategy == "solo" && o.notes.empty(); }},
      {"--kvstore device", [](const auto& o) { return o.strategy == "solo" && o.notes.empty(); }},
      {"--kv-store dist_sync_device", [](const auto& o) { return o.strategy == "solo" && o.notes.size() == 1; }},
      {"--gc-type none --gc-threshold 0.5", [](const auto& o) { return o.gc_type == "none"; }},
      {"--max-random-h 0 --min-random-aspect-ratio none --max-crop-size -1 --pca-noise 0.0",
       [](const auto& o) { return o.depth == 20; }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.line);
    CHECK(c.holds(options(c.line)));
  }
}

TEST_CASE("the command lines of the published articles are accepted") {
  RunOptions o = options("--network resnet --num-layers 50 --kv-store dist_device_sync");
  CHECK(o.depth == 50);
  CHECK(o.notes.size() == 1);
  o = options(
      "--network resnet --num-layers 110 --batch-size 128 --kv-store dist_device_sync --num-epochs 300 --lr 0.05 "
      "--lr-factor 0.1 --lr-step-epochs 200,250 --wd 0.0001 --mom 0.9 --optimizer sgd --disp-batches 20 "
      "--num-classes 10 --num-examples 50000 --image-shape 3,28,28 --pad-size 4 --model-prefix cifar --save-period 1 "
      "--top-k 0 --test-io 0 --benchmark 0 --dtype float32 --gc-type none --data-nthreads 4 --random-crop 0 "
      "--random-mirror 0 --fill-value 127 --rgb-mean 123.68,116.779,103.939 --rgb-std 1,1,1 --initializer default "
      "--macrobatch-size 0 --warmup-strategy linear --monitor 0");
  CHECK(o.epochs == 300);
  CHECK(o.network == "resnet_preact");  // MXNet's net for images of up to 28 pixels
  CHECK(options("--network resnet --dataset fashion_mnist").network == "resnet_preact");
  CHECK(options("--network resnet").network == "resnet");
  CHECK(o.lr == 0.05);
  const Schedule lr = make_schedule(o, 391);
  const auto at = [&](std::int64_t step) { return lr(SchedulePoint{step, 391, 391 * 300, 128, 1}); };
  CHECK(at(0) == 0.05);
  CHECK(at(200 * 391 - 1) == 0.05);
  CHECK(at(200 * 391) == doctest::Approx(0.005));
  CHECK(at(250 * 391) == doctest::Approx(0.0005));
}

TEST_CASE("a preset sets defaults that options override") {
  RunOptions o = options("--preset cifar-resnet50-28");
  CHECK(o.network == "resnet_preact");
  CHECK(o.depth == 50);
  CHECK(o.image_shape == "3,28,28");
  CHECK_FALSE(o.random_crop);
  CHECK_FALSE(o.random_mirror);
  CHECK(o.pad_size == 0);
  o = options("--depth 110 --random-mirror --preset cifar-resnet50-28");
  CHECK(o.depth == 110);
  CHECK(o.random_mirror);
  CHECK(o.network == "resnet_preact");
}

TEST_CASE("--preset mxnet has the values of MXNet's train_cifar10.py, and options override them") {
  RunOptions o = options("--preset mxnet");
  CHECK(o.network == "resnet_preact");
  CHECK(o.depth == 50);
  CHECK(o.image_shape == "3,28,28");
  CHECK_FALSE(o.random_crop);
  CHECK_FALSE(o.random_mirror);
  CHECK(o.batch_size == 128);
  CHECK(o.global_batch_size == 128);
  CHECK(o.epochs == 300);
  CHECK(o.optimizer == "sgd");
  CHECK(o.lr == 0.05);
  CHECK(o.wd == 1e-4);
  CHECK(o.log_lines == "mxnet");
  const Schedule lr = make_schedule(o, 391);
  const auto at = [&](std::int64_t step) { return lr(SchedulePoint{step, 391, 391 * 300, 128, 1}); };
  CHECK(at(0) == 0.05);
  CHECK(at(200 * 391) == doctest::Approx(0.005));
  CHECK(at(250 * 391) == doctest::Approx(0.0005));
  // A command line of MXNet's tutorials.
  o = options("--preset mxnet --network resnet --num-layers 110 --kv-store dist_device_sync --num-epochs 10 --lr 0.1");
  CHECK(o.depth == 110);
  CHECK(o.epochs == 10);
  CHECK(o.lr == 0.1);
  CHECK(contains(error("--preset mx"), "[--preset] expected cifar-resnet50-28 or mxnet, got 'mx'"));
  CHECK(contains(error("--log-lines tensorflow"), "[--log-lines] expected tutti or mxnet"));
}

TEST_CASE("the log lines have the format of MXNet") {
  StepReport s;
  s.epoch = 3;
  s.step_in_epoch = 20;
  s.images_per_second = 1234.567;
  s.train_top1 = 0.25;
  CHECK(mxnet_step_line(s) == "Epoch[2] Batch [20]\tSpeed: 1234.57 samples/sec\taccuracy=0.250000");
  EpochReport e;
  e.epoch = 1;
  e.train_top1 = 0.5;
  e.seconds = 12;
  CHECK(mxnet_epoch_lines(e) == "Epoch[0] Train-accuracy=0.500000\nEpoch[0] Time cost=12.000");
  e.test = EvaluationReport{.top1 = 0.75, .images = 100, .images_per_second = 50};
  CHECK(mxnet_epoch_lines(e) ==
        "Epoch[0] Train-accuracy=0.500000\nEpoch[0] Time cost=10.000\nEpoch[0] Validation-accuracy=0.750000");
}

TEST_CASE("the preset's net has the published number of parameters") {
  for (const auto& [depth, parameters] : {std::pair{50, 758'624}, std::pair{110, 1'730'784}}) {
    const RunOptions o = options("--preset cifar-resnet50-28 --depth " + std::to_string(depth));
    Schema seen;
    seen.name = "images";
    seen.channels = 3;
    seen.height = seen.width = 28;
    seen.classes = 10;
    seen.mean = {0, 0, 0};
    seen.stddev = {1, 1, 1};
    std::int64_t sum = 0;
    for (const Value& v : make_model(o, seen).values)
      if (v.storage == Storage::parameter) sum += v.shape.numel();
    CHECK(sum == parameters);
  }
}

TEST_CASE("learning-rate schedules follow their options") {
  const auto rate = [](const std::string& line, std::int64_t step) {
    return make_schedule(options("--epochs 10 --lr 1 --warmup-lr 0 " + line),
                         100)(SchedulePoint{step, 100, 1000, 128, 1});
  };
  CHECK(rate("", 50) == doctest::Approx(0.5));
  CHECK(rate("", 100) == doctest::Approx(1));
  CHECK(rate("", 550) == doctest::Approx(0.5));
  CHECK(rate("", 1000) == doctest::Approx(0));
  CHECK(rate("--warmup-strategy power2", 50) == doctest::Approx(0.25));
  CHECK(rate("--warmup-strategy sqrt", 25) == doctest::Approx(0.5));
  CHECK(rate("--warmup-strategy sqrt", 550) == doctest::Approx(0.5));
  CHECK(rate("--lr-schedule cosine", 550) == doctest::Approx(0.5));
  CHECK(rate("--lr-schedule cosine --cosine-alpha 0.1", 1000) == doctest::Approx(0.1));
  CHECK(rate("--lr-schedule poly --lr-end 0", 550) == doctest::Approx(0.25));
  CHECK(rate("--lr-schedule constant", 999) == 1);
  CHECK(rate("--lr-step-epochs 5", 0) == 1);
  CHECK(rate("--lr-step-epochs 5 --warmup-epochs 2", 100) == doctest::Approx(0.5));
  CHECK(rate("--lr-step-epochs 5 --warmup-epochs 2", 499) == 1);
  CHECK(rate("--lr-step-epochs 5 --warmup-epochs 2 --warmup-strategy power2", 500) == doctest::Approx(0.1));
  CHECK(rate("--lr-step-epochs pow2", 500) == doctest::Approx(0.25));
  CHECK(rate("--lr-schedule cosine_restarts --cdr-first-decay-ratio 0.5 --warmup-epochs 0", 500) ==
        doctest::Approx(0.1));
  CHECK(rate("--lr-schedule linear_cosine --warmup-epochs 0", 0) == doctest::Approx(1.00001));
}
