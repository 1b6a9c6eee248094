// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
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
using test::message_of;

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

TEST_CASE("the error for a bad command line names the option") {
  struct Case {
    const char* line;
    const char* named;
  };
  const Case cases[] = {
      {"--no-such-option", "--no-such-option"},
      {"--epohcs 3", "did you mean --epochs"},
      {"--epochs", "[--epochs] expected a value, got none"},
      {"--epochs --depth 20", "[--epochs]"},
      {"--epochs abc", "[--epochs]"},
      {"--epochs 3x", "[--epochs]"},
      {"--epochs 1e3", "[--epochs]"},
      {"--epochs 0", "[--epochs]"},
      {"--epochs -1", "[--epochs]"},
      {"--epochs 99999999999999999999", "[--epochs]"},
      {"--num-epochs 0x10", "[--epochs]"},
      {"--epochs=", "--epochs"},
      {"epochs 3", "'epochs'"},
      {"-x", "'-x'"},
      {"--lr fast", "[--lr]"},
      {"--lr nan", "[--lr]"},
      {"--lr -0.1", "[--lr]"},
      {"--lr inf", "[--lr]"},
      {"--mom 1", "[--mom]"},
      {"--depth 21", "[--depth]"},
      {"--depth 2", "[--depth]"},
      {"--network vgg", "got 'vgg'. hint: docs/how-to/own-model.md shows how to train another net"},
      {"--network resnet_imagenet --depth 20", "[--depth]"},
      {"--preset resnet", "[--preset]"},
      {"--batch-size 0", "[--batch-size]"},
      {"--batch-size 1000000 --accumulate 1000000", "--batch-size"},
      {"--global-batch-size 3 --accumulate 4", "[--global-batch-size]"},
      {"--seed -1", "[--seed]"},
      {"--precision float16", "bf16"},
      {"--dtype fp16", "[--precision]"},
      {"--precision f64", "[--precision]"},
      {"--dataset imagenet", "[--dataset]"},
      {"--backend tpu", "[--backend]"},
      {"--threads -1", "[--threads]"},
      {"--optimizer adan",
       "[--optimizer] expected nag, sgd, adam, adamw, lamb, muon, lars, larc or lbsgd, got 'adan'. hint: did "
       "you mean adam"},
      {"--optimizer adam --opt-betas 0.9", "[--opt-betas] expected two numbers from 0 to below 1"},
      {"--optimizer adam --opt-betas 0.9,1", "[--opt-betas]"},
      {"--optimizer adamw --opt-betas=-0.1,0.9", "[--opt-betas]"},
      {"--optimizer adamw --opt-betas nan,0.9", "[--opt-betas]"},
      {"--optimizer adamw --opt-eps 0", "[--opt-eps] expected above 0, to 1, got 0"},
      {"--opt-eps 1e-8", "[--opt-eps] expected --optimizer adam, adamw or lamb together with it"},
      {"--muon-steps 3", "[--muon-steps] expected --optimizer muon together with it"},
      {"--rest-lr 0.1", "[--rest-lr] expected --optimizer muon together with it"},
      {"--optimizer muon --muon-rest lamb", "[--muon-rest]"},
      {"--optimizer muon --muon-rest adamw --rest-mom 0.9", "[--rest-mom]"},
      {"--optimizer muon --muon-steps 0", "[--muon-steps]"},
      {"--optimizer muon --opt-eps 1e-8", "[--opt-eps]"},
      {"--optimizer muom", "did you mean muon"},
      {"--trust-clip", "[--trust-clip] expected --optimizer lamb together with it"},
      {"--optimizer adam --max-grad-norm 1", "--clip-norm limits the norm for every optimizer"},
      {"--optimizer lamb --max-grad-norm -1", "[--max-grad-norm]"},
      {"--optimizer lamb --opt-eps=-1", "[--opt-eps]"},
      {"--optimizer lamp", "did you mean lamb"},
      {"--optimizer sgd --opt-betas 0.9,0.99", "[--opt-betas]"},
      {"--initializer zeros", "[--initializer]"},
      {"--label-smoothing 1", "[--label-smoothing]"},
      {"--image-shape 3,28", "[--image-shape]"},
      {"--image-shape 3,28,2.5", "[--image-shape]"},
      {"--rgb-std 0", "[--rgb-std]"},
      {"--rgb-mean a", "[--rgb-mean]"},
      {"--num-classes 1", "[--num-classes]"},
      {"--random-mirror maybe", "[--random-mirror]"},
      {"--random-mirror 2", "[--random-mirror]"},
      {"--auto-augment trivail", "did you mean trivial"},
      {"--auto-augment rand-m11x", "[--auto-augment] expected m with a magnitude of 0 to 100"},
      {"--auto-augment ra-m31", "[--auto-augment] expected a bin m of 0 to 30"},
      {"--random-erase 1.5", "[--random-erase] expected 0 to 1"},
      {"--erase-mode pixels", "[--erase-mode] expected const, rand or pixel, got 'pixels'. hint: did you mean pixel"},
      {"--erase-count 0", "[--erase-count] expected 1 to 16"},
      {"--repeated-aug 0", "[--repeated-aug] expected 1 to 64"},
      {"--interpolation bi-cubic", "hint: did you mean bicubic"},
      {"--jitter-contrast 2", "[--jitter-contrast] expected 0 to 1"},
      {"--pad-mode replicate", "[--pad-mode] expected constant or reflect"},
      {"--no-random-mirror=1", "[--no-random-mirror]"},
      {"--lr-schedule fast", "[--lr-schedule]"},
      {"--lr-schedule cosine --lr-step-epochs 5", "[--lr-step-epochs]"},
      {"--lr-schedule cosine --lr-factor 0.5", "[--lr-factor]"},
      {"--lr-schedule one_cycle --warmup-epochs 2", "[--warmup-epochs] expected 0 with one_cycle"},
      {"--lr-schedule one_cycle --pct-start 0.6 --three-phase", "[--pct-start]"},
      {"--lr-schedule one_cycle --anneal-strategy coss",
       "[--anneal-strategy] expected cos or linear, got 'coss'. hint: "
       "did you mean cos"},
      {"--lr-schedule one-circle", "did you mean one_cycle"},
      {"--lr-updates batch", "[--lr-updates]"},
      {"--ema-every 4", "[--ema-every] expected --ema-decay together with it"},
      {"--ema-schedule timm", "[--ema-schedule] expected --ema-decay together with it"},
      {"--ema-decay 0.9 --ema-every 0", "[--ema-every]"},
      {"--ema-decay 0.9 --ema-schedule tim", "did you mean timm"},
      {"--lr-step-epochs 5,3", "[--lr-step-epochs]"},
      {"--lr-step-epochs 5;7", "[--lr-step-epochs]"},
      {"--lr-step-epochs pow", "[--lr-step-epochs]"},
      {"--warmup-strategy lars", "[--warmup-strategy]"},
      {"--epochs 3 --centre-epochs 4", "[--centre-epochs]"},
      {"--resume", "[--resume]"},
      {"--resume latest --run-dir r", "write the value of --resume after '='"},
      {"--load-epoch 3", "[--load-epoch]"},
      {"--load-epoch 0 --run-dir r", "[--load-epoch]"},
      {"--load-epoch 3 --run-dir r --resume", "[--load-epoch]"},
      {"--model-prefix a --run-dir b", "[--model-prefix]"},
      {"--eval-only", "[--eval-only]"},
      {"--keep 0", "[--keep]"},
      {"--strategy mpi", "[--strategy]"},
      {"--kv-store nccl", "[--kv-store]"},
      {"--gpus 0,1", "cuda backend"},
      {"--data-val b.rec", "[--data-train] expected the training images, got --data-val alone"},
      {"--data-train a.rec --benchmark 1", "[--data-train]"},
      {"--data-train a.rec --data d", "[--data]"},
      {"--data-train-idx a.idx", "[--data-train-idx] expected --data-train"},
      {"--decoder stb", "[--decoder] expected --data-train"},
      {"--data-train a.rec --decoder cv2", "[--decoder]"},
      {"--gpus= --backend cuda", "[--gpus] expected a GPU for --backend cuda, got none"},
      {"--epochs 3 --num-epochs 5", "[--num-epochs] expected the value of --epochs, another name of this option, '3'"},
      {"--lr= --depth 20", "[--lr] expected a number, got ''"},
      {"--dataset= --depth 20", "[--dataset]"},
      {"--gc-type 2bit", "parameter-server"},
      {"--gc-type 4bit", "[--gc-type]"},
      {"--max-random-h 36", "[--max-random-h]"},
      {"--random-resized-crop 1", "[--random-resized-crop]"},
      {"--brightness x", "[--brightness]"},
      {"--config /no/such/file", "/no/such/file"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.line);
    const std::string message = error(c.line);
    CHECK_MESSAGE(contains(message, c.named), "got: ", message);
    CHECK(std::count(message.begin(), message.end(), '\n') == 0);
  }
}

TEST_CASE("an option with an empty value does not use the next word as its value") {
  for (const auto& line : std::vector<std::vector<std::string>>{{"--gpus", "", "--dataset", "synthetic"},
                                                                {"--gpus=", "--dataset", "synthetic"},
                                                                {"--gpus", "--dataset", "synthetic"},
                                                                {"--dataset", "synthetic", "--gpus", ""}}) {
    auto o = parse(line);
    REQUIRE(o);
    CHECK(o->dataset == "synthetic");
    // The CPU is used even if there is a GPU.
    check(*o, {1, {"solo", "mpi", "nccl"}, true});
    CHECK(o->backend == "auto");
    CHECK(o->strategy == "solo");
    o = parse(line);
    o->kv_store = "dist_device_sync";
    check(*o, {4, {"solo", "mpi", "nccl"}, true});
    CHECK(o->backend == "auto");
    CHECK(o->strategy == "mpi");
    o = parse(line);
    o->strategy = "nccl";
    CHECK(contains(message_of<UsageError>([&] { check(*o, {4, {"solo", "mpi", "nccl"}, true}); }), "[--gpus]"));
  }
}

TEST_CASE("the error for --gpus in a build without the CUDA backend names the build") {
  auto o = parse({"--dataset", "synthetic", "--gpus", "0,1"});
  REQUIRE(o);
  StartedJob job;
  job.cuda_built = false;
  const std::string message = message_of<UsageError>([&] { check(*o, job); });
  CHECK(contains(message, "[--gpus] expected no GPUs, because this build has no CUDA backend, got 0,1"));
  CHECK(contains(message, "hint: give --gpus '' to train on the processor"));
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

TEST_CASE("--batch-size counts the images of a rank, of a worker, or of the job") {
  const auto checked = [](const std::string& line, int processes) {
    auto o = parse(words("--dataset synthetic --strategy nccl --backend cuda --batch-size 128 " + line));
    check(*o, {processes, {"solo", "mpi", "nccl"}, true});
    return *o;
  };
  CHECK(checked("", 8).global_batch_size == 1024);
  CHECK(checked("--batch-of rank", 8).batch_size == 128);
  // Two workers in MXNet's sense, with four GPUs each.
  RunOptions o = checked("--batch-of machine --gpus 0,1,2,3", 8);
  CHECK(o.global_batch_size == 256);
  CHECK(o.batch_size == 32);
  CHECK(checked("--batch-of worker", 8).global_batch_size == 1024);
  o = checked("--batch-of job --accumulate 2", 8);
  CHECK(o.global_batch_size == 256);
  CHECK(o.batch_size == 16);
  CHECK(checked("--batch-of job --global-batch-size 512", 8).global_batch_size == 512);
  const auto said = [&](const std::string& line, int n) {
    return message_of<UsageError>([&] { (void)checked(line, n); });
  };
  CHECK(contains(said("--batch-of worker --gpus 0,1,2", 8), "[--batch-of] expected as many ranks for each worker"));
  CHECK(contains(said("--batch-of cluster", 8), "[--batch-of] expected rank, worker or job"));
  CHECK(contains(said("--batch-of job --macrobatch-size 512", 8), "[--macrobatch-size]"));
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

TEST_CASE("the error for an unknown option that is similar to a known option suggests the known option") {
  CHECK(contains(error("--batch 3"), "did you mean --batch-size"));
  CHECK(contains(error("--learning-rate 3"), "did you mean --lr"));
  CHECK(contains(error("--frobnicate 3"), "--help-all lists all options"));
  CHECK(contains(error("--smoothing 3"), "did you mean --label-smoothing"));
  CHECK(contains(error("--epoch 3"), "did you mean --epochs"));
  CHECK(contains(error("--weightdecay 3"), "did you mean --weight-decay"));
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
