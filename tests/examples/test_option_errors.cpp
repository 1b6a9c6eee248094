// SPDX-License-Identifier: MIT
// Tests command lines that are refused, and options whose meaning depends on the job.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "data/temp_folder.hpp"
#include "option_lines.hpp"
#include "tools/trainer/check.hpp"

using namespace tutti;
using namespace tutti::trainer;
using namespace tutti::trainer::lines;
using test::contains;
using test::message_of;

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
      {"--cycle-momentum", "[--cycle-momentum] expected --lr-schedule one_cycle together with it, got linear"},
      {"--lr-schedule one_cycle --base-momentum 0.8", "[--base-momentum] expected --cycle-momentum together with it"},
      {"--lr-schedule one_cycle --max-momentum 0.8", "[--max-momentum] expected --cycle-momentum together with it"},
      {"--lr-schedule one_cycle --cycle-momentum --max-momentum 1", "[--max-momentum]"},
      {"--lr-schedule one_cycle --cycle-momentum --base-momentum 0.9 --max-momentum 0.8",
       "[--base-momentum] expected 0 to 0.8, got 0.9"},
      {"--sam -1", "[--sam]"},
      {"--sam 0.1 --sam-every 0", "[--sam-every]"},
      {"--sam-every 4", "[--sam-every] expected --sam together with it, got 4"},
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

TEST_CASE("the error for an unknown option that is similar to a known option suggests the known option") {
  CHECK(contains(error("--batch 3"), "did you mean --batch-size"));
  CHECK(contains(error("--learning-rate 3"), "did you mean --lr"));
  CHECK(contains(error("--frobnicate 3"), "--help-all lists all options"));
  CHECK(contains(error("--smoothing 3"), "did you mean --label-smoothing"));
  CHECK(contains(error("--epoch 3"), "did you mean --epochs"));
  CHECK(contains(error("--weightdecay 3"), "did you mean --weight-decay"));
}
