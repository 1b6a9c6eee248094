// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "data/temp_folder.hpp"
#include "examples/common/check.hpp"
#include "examples/common/cli.hpp"
#include "examples/common/config_file.hpp"
#include "examples/common/recipe.hpp"

using namespace tutti;
using namespace tutti::examples;
using test::contains;
using test::message_of;

namespace {

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> list;
  for (std::string w; in >> w;) list.push_back(w);
  return list;
}

std::optional<RunOptions> parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "train_cifar10");
  std::vector<char*> argv;
  for (auto& a : arguments) argv.push_back(a.data());
  return parse_command_line(static_cast<int>(argv.size()), argv.data());
}

// Parsed and checked.
RunOptions options(const std::string& line, int processes = 1) {
  auto o = parse(words(line));
  REQUIRE(o);
  check(*o, processes);
  return *o;
}

std::string error(const std::string& line, int processes = 1) {
  return message_of<UsageError>([&] { options(line, processes); });
}

struct NoEnvironment {
  NoEnvironment() { ::unsetenv("TUTTI_DATA"); }
};
const NoEnvironment no_environment;

}  // namespace

TEST_CASE("good command lines") {
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
      {"--optimizer lbsgd", [](const auto& o) { return o.optimizer == "sgd" && o.warmup_epochs == 5.0; }},
      {"--optimizer larc", [](const auto& o) { return o.eta == 0.013; }},
      {"--initializer default", [](const auto& o) { return o.initializer == "he"; }},
      {"--top-k 0", [](const auto& o) { return o.top_k == 5; }},
      {"--lr-schedule step", [](const auto& o) { return o.lr_step_epochs == "7.5,11.25"; }},
      {"--lr-mode poly", [](const auto& o) { return o.lr_end == 1e-5; }},
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

TEST_CASE("the articles' command lines") {
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
  CHECK(o.network == "resnet_preact");  // MXNet's on images of up to 28 pixels
  CHECK(options("--network resnet --dataset fashion_mnist").network == "resnet_preact");
  CHECK(options("--network resnet").network == "resnet");
  CHECK(o.lr == 0.05);
  const Schedule lr = make_schedule(o, 391);
  const auto at = [&](std::int64_t step) { return lr(Progress{step, 391, 391 * 300, 128, 1}); };
  CHECK(at(0) == 0.05);
  CHECK(at(200 * 391 - 1) == 0.05);
  CHECK(at(200 * 391) == doctest::Approx(0.005));
  CHECK(at(250 * 391) == doctest::Approx(0.0005));
}

TEST_CASE("bad command lines name the option") {
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
      {"--network vgg", "[--network]"},
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
      {"--optimizer adam", "[--optimizer]"},
      {"--initializer zeros", "[--initializer]"},
      {"--label-smoothing 1", "[--label-smoothing]"},
      {"--image-shape 3,28", "[--image-shape]"},
      {"--image-shape 3,28,2.5", "[--image-shape]"},
      {"--rgb-std 0", "[--rgb-std]"},
      {"--rgb-mean a", "[--rgb-mean]"},
      {"--num-classes 1", "[--num-classes]"},
      {"--random-mirror maybe", "[--random-mirror]"},
      {"--random-mirror 2", "[--random-mirror]"},
      {"--pad-mode replicate", "[--pad-mode] expected constant or reflect"},
      {"--no-random-mirror=1", "[--no-random-mirror]"},
      {"--lr-schedule fast", "[--lr-schedule]"},
      {"--lr-schedule cosine --lr-step-epochs 5", "[--lr-step-epochs]"},
      {"--lr-schedule cosine --lr-factor 0.5", "[--lr-factor]"},
      {"--lr-step-epochs 5,3", "[--lr-step-epochs]"},
      {"--lr-step-epochs 5;7", "[--lr-step-epochs]"},
      {"--lr-step-epochs pow", "[--lr-step-epochs]"},
      {"--warmup-strategy lars", "[--warmup-strategy]"},
      {"--epochs 3 --centre-epochs 4", "[--centre-epochs]"},
      {"--resume", "[--resume]"},
      {"--resume latest --run-dir r", "--resume takes its value after '='"},
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
      {"--epochs 3 --num-epochs 5", "[--num-epochs] expected what --epochs says, another name of this option, '3'"},
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

TEST_CASE("an empty value takes nothing of what stands after it") {
  for (const auto& line : std::vector<std::vector<std::string>>{{"--gpus", "", "--dataset", "synthetic"},
                                                                {"--gpus=", "--dataset", "synthetic"},
                                                                {"--gpus", "--dataset", "synthetic"},
                                                                {"--dataset", "synthetic", "--gpus", ""}}) {
    auto o = parse(line);
    REQUIRE(o);
    CHECK(o->dataset == "synthetic");
    // The processor, even where there is a GPU.
    check(*o, 1, {"solo", "mpi", "nccl"}, true);
    CHECK(o->backend == "auto");
    CHECK(o->strategy == "solo");
    o = parse(line);
    o->kv_store = "dist_device_sync";
    check(*o, 4, {"solo", "mpi", "nccl"}, true);
    CHECK(o->backend == "auto");
    CHECK(o->strategy == "mpi");
    o = parse(line);
    o->strategy = "nccl";
    CHECK(contains(message_of<UsageError>([&] { check(*o, 4, {"solo", "mpi", "nccl"}, true); }), "[--gpus]"));
  }
}

TEST_CASE("several processes need a strategy that knows of them") {
  CHECK(contains(error("--kv-store dist_sync", 4), "[--kv-store]"));
  CHECK(contains(error("", 4), "4 that the launcher started"));
  CHECK(contains(error("--strategy solo", 4), "[--strategy] expected mpi or nccl for the 4 processes"));
}

TEST_CASE("options that a strategy has no use for are refused or named") {
  const std::vector<std::string> built{"solo", "mpi", "nccl"};
  const auto checked = [&](const std::string& line, int processes) {
    auto o = parse(words(line));
    check(*o, processes, built);
    return *o;
  };
  for (const char* option : {"--comm-wire bf16", "--no-hierarchical", "--no-shared-memory"}) {
    const std::string nccl = std::string("--backend cuda --strategy nccl ") + option;
    const std::string said = message_of<UsageError>([&] { (void)checked(nccl, 2); });
    CHECK_MESSAGE(contains(said, "expected strategy mpi with it, because nccl has no use for it"), said);
    CHECK(contains(said, words(option)[0]));
    CHECK_NOTHROW((void)checked(std::string("--strategy mpi ") + option, 2));
  }
  CHECK_NOTHROW((void)checked("--backend cuda --strategy nccl --hierarchical --comm-wire f32 --bucket-mib 4", 2));
  for (const char* option :
       {"--comm-wire bf16", "--no-hierarchical", "--no-shared-memory", "--bucket-mib 4", "--comm-deadline 5"}) {
    const std::string said =
        message_of<UsageError>([&] { (void)checked(std::string("--strategy solo ") + option, 1); });
    CHECK_MESSAGE(contains(said, "expected a strategy of several processes with it, got --strategy solo"), said);
    // The same line serves one process and many.
    const auto notes = checked(option, 1).notes;
    REQUIRE(notes.size() == 1);
    CHECK(notes[0] == "one process trains alone: nothing is done with " + words(option)[0]);
  }
  CHECK(contains(message_of<UsageError>([&] { (void)checked("--gc-threshold 0.1", 1); }), "--gc-threshold"));
}

TEST_CASE("Horovod's variables act, or are named") {
  using Variables = std::vector<std::pair<std::string, std::string>>;
  const auto applied = [](RunOptions o, const std::string& strategy, const Variables& v, int processes = 2) {
    o.strategy = strategy;
    apply_horovod_variables(o, v, processes);
    return o;
  };
  auto o = applied({}, "mpi", {{"FUSION_THRESHOLD", "33554432"}, {"HIERARCHICAL_ALLREDUCE", "0"}});
  CHECK(o.bucket_mib == 32);
  CHECK_FALSE(o.hierarchical);
  CHECK(o.notes == std::vector<std::string>{"HOROVOD_FUSION_THRESHOLD=33554432: --bucket-mib 32",
                                            "HOROVOD_HIERARCHICAL_ALLREDUCE=0: --no-hierarchical"});
  o = applied({}, "nccl",
              {{"CYCLE_TIME", "1"}, {"FUSION_THRESHOLD", "0"}, {"HIERARCHICAL_ALLREDUCE", "1"}, {"TIMELINE", "t"}});
  CHECK(o.bucket_mib == 1);
  CHECK(o.notes.back() ==
        "nothing is done with HOROVOD_CYCLE_TIME, HOROVOD_HIERARCHICAL_ALLREDUCE, HOROVOD_TIMELINE (strategy nccl)");
  CHECK(o.notes.size() == 2);
  // What is said on the command line comes first.
  RunOptions said;
  said.bucket_mib = 4;
  CHECK(applied(said, "mpi", {{"FUSION_THRESHOLD", "33554432"}}).bucket_mib == 4);
  CHECK(applied({}, "solo", {{"FUSION_THRESHOLD", "x"}}).notes.size() == 1);
  for (const auto& variable : Variables{{"FUSION_THRESHOLD", "64MB"},
                                        {"FUSION_THRESHOLD", "-1"},
                                        {"FUSION_THRESHOLD", ""},
                                        {"HIERARCHICAL_ALLREDUCE", "2"},
                                        {"HIERARCHICAL_ALLREDUCE", "true"}})
    CHECK(contains(message_of<UsageError>([&] { (void)applied({}, "mpi", {variable}); }),
                   "environment HOROVOD_" + variable.first));
  CHECK(contains(message_of<UsageError>([&] { (void)applied({}, "solo", {{"SIZE", "4"}}, 1); }), "tutti-launch -n 4"));
  CHECK(applied({}, "solo", {{"SIZE", "1"}}, 1).notes.size() == 1);
}

TEST_CASE("a preset sets defaults, which options override") {
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

TEST_CASE("a configuration file: precedence, spellings, forms") {
  test::TempFolder folder;
  const auto file = (folder / "a.toml").string();
  test::write_text(file,
                   "# a comment\n; another\n\nepochs = 7 # seven\nbatch_size=64\nlr = 0.3\ndata = \"/my \\\"data\\\" # "
                   "here\"\nlr-step-epochs = [3, 5]\nrandom-mirror = false\nrandom_crop = 0\nnum-layers = '32'\n"
                   "resume = \"best\"\nrun-dir = r\nrgb-mean = 1,2,3\n");
  RunOptions o = options("--config " + file + " --lr 0.5");
  CHECK(o.epochs == 7);
  CHECK(o.batch_size == 64);
  CHECK(o.lr == 0.5);
  CHECK(o.data_dir == "/my \"data\" # here");
  CHECK(o.lr_step_epochs == "3,5");
  CHECK_FALSE(o.random_mirror);
  CHECK_FALSE(o.random_crop);
  CHECK(o.depth == 32);
  CHECK(o.resume == "best");
  CHECK(o.rgb_mean == "1,2,3");
  CHECK(options("--random-mirror --config=" + file).random_mirror);

  test::write_text(file, "preset = cifar-resnet50-28\ndepth = 20\n");
  o = options("--config " + file);
  CHECK(o.network == "resnet_preact");
  CHECK(o.depth == 20);
}

TEST_CASE("bad configuration files name the line or the key") {
  test::TempFolder folder;
  const auto file = (folder / "a.toml").string();
  const std::pair<const char*, const char*> cases[] = {
      {"epochs = 3\nno_such_key = 4\n", "line 2"},
      {"no_such_key = 4\n", "--no-such-key"},
      {"epohcs = 4\n", "did you mean --epochs"},
      {"x=1\n", "--x"},
      {"epochs = abc\n", "[--epochs]"},
      {"epochs = 3, 4\n", "[--epochs]"},
      {"epochs 3\n", "line 1"},
      {"epochs =\n", "line 1"},
      {"a\n", "line 1"},
      {"[data]\nepochs = 3\n", "sections"},
      {"data = \"open\n", "line 1"},
      {"data = \"a\" b\n", "line 1"},
      {"data = \"\\n\"\n", "line 1"},
      {"rgb-mean = [1, 2\n", "line 1"},
      {"epochs = 3\nepochs = 4\n", "epochs again"},
      {"epochs = 3\nnum-epochs = 4\n", "line 2: --num-epochs] expected what --epochs says"},
      {"config = \"b.toml\"\n", "line 1"},
      {"print-config = true\n", "line 1"},
  };
  for (const auto& wrong : cases) {
    const auto &text = std::get<0>(wrong), &named = std::get<1>(wrong);
    CAPTURE(text);
    test::write_text(file, text);
    const std::string message = error("--config " + file);
    CHECK_MESSAGE(contains(message, named), "got: ", message);
  }
}

TEST_CASE("what is printed as configuration reads back the same") {
  test::TempFolder folder;
  const auto file = (folder / "a.toml").string();
  for (const char* line :
       {"", "--preset cifar-resnet50-28 --lr 0.1", "--lr-step-epochs 5,7 --lr-factor 0.3 --epochs 9 --no-random-crop",
        "--data /a\"b\\c --run-dir r --resume=best --seed 18446744073709551615 --wd 1e-7 --image-shape 3,28,28",
        "--pad-mode reflect --pad-size 3", "--load-epoch 3 --model-prefix 'm' --keep 4 --dry-run --audit 1",
        "--gpus= --epochs 3"}) {
    CAPTURE(line);
    const auto o = parse(words(line));
    REQUIRE(o);
    const std::string text = config_text(*o);
    test::write_text(file, text);
    const auto again = parse({"--config", file});
    REQUIRE(again);
    CHECK(config_text(*again) == text);
    RunOptions a = *o, b = *again;
    check(a);
    check(b);
    CHECK(config_text(a) == config_text(b));
    CHECK(options_json(a) == options_json(b));
    // What check() settled is itself a command that means the same.
    test::write_text(file, config_text(a));
    RunOptions c = options("--config " + file);
    CHECK(config_text(c) == config_text(a));
  }
}

TEST_CASE("the environment names the data, below file and command line") {
  test::TempFolder folder;
  ::setenv("TUTTI_DATA", "/env", 1);
  RunOptions o = options("");
  CHECK(o.data_dir == "/env");
  CHECK(o.data_dir_from_environment);
  o = options("--data /arg");
  CHECK(o.data_dir == "/arg");
  CHECK_FALSE(o.data_dir_from_environment);
  test::write_text(folder / "c", "data = /file\n");
  CHECK(options("--config " + (folder / "c").string()).data_dir == "/file");
  ::unsetenv("TUTTI_DATA");
}

TEST_CASE("every option by environment, below file and command line") {
  struct Set {
    std::string name;
    Set(std::string n, const char* value) : name(std::move(n)) { ::setenv(name.c_str(), value, 1); }
    Set(const Set&) = delete;
    Set& operator=(const Set&) = delete;
    ~Set() { ::unsetenv(name.c_str()); }
  };
  test::TempFolder folder;
  test::write_text(folder / "c", "num-layers = 32\nwd = 0.1\n");
  const std::string config = "--config " + (folder / "c").string();
  {
    const Set a("TUTTI_NUM_EPOCHS", "7"), b("TUTTI_DEPTH", "44"), c("TUTTI_WD", "0.2"), d("TUTTI_RANDOM_MIRROR", "0"),
        e("TUTTI_LR", ""), f("TUTTI_GPUS", ""), g("TUTTI_SIZE", "4"), h("TUTTI_PCA_NOISE", "0");
    RunOptions o = options(config + " --wd 0.3");
    CHECK(o.epochs == 7);
    CHECK(o.depth == 32);
    CHECK(o.wd == 0.3);
    CHECK_FALSE(o.random_mirror);
    CHECK(o.lr == 0.1);
    CHECK_FALSE(o.gpus);
    CHECK(o.notes.size() == 2);
    CHECK(contains(o.notes[0] + o.notes[1], "--epochs comes from the environment's TUTTI_NUM_EPOCHS"));
    CHECK(options("").depth == 44);
    CHECK(options("--random-mirror").random_mirror);
  }
  {
    const Set preset("TUTTI_PRESET", "cifar-resnet50-28"), depth("TUTTI_DEPTH", "110");
    const RunOptions o = options("");
    CHECK(o.network == "resnet_preact");
    CHECK(o.depth == 110);
  }
  {
    const Set file("TUTTI_CONFIG", (folder / "c").c_str());
    CHECK(options("").depth == 32);
    CHECK(contains(error("--config /no/such/file"), "/no/such/file"));
  }
  const std::vector<std::array<const char*, 3>> bad{
      {"TUTTI_EPOHCS", "3", "environment TUTTI_EPOHCS] expected an option of train_cifar10"},
      {"TUTTI_EPOHCS", "3", "did you mean TUTTI_EPOCHS"},
      {"TUTTI_epochs", "3", "did you mean TUTTI_EPOCHS"},
      {"TUTTI_HELP", "1", "TUTTI_HELP"},
      {"TUTTI_WHATEVER_ELSE", "1", "unset TUTTI_WHATEVER_ELSE"},
      {"TUTTI_EPOCHS", "3x", "[environment TUTTI_EPOCHS] expected an integer"},
      {"TUTTI_PCA_NOISE", "1", "[environment TUTTI_PCA_NOISE]"},
      {"TUTTI_EVAL_INTERVAL", "1", "TUTTI_EVAL_INTERVAL"}};
  for (const auto& wrong : bad) {
    const auto &name = std::get<0>(wrong), &value = std::get<1>(wrong), &named = std::get<2>(wrong);
    const Set set(name, value);
    CAPTURE(name);
    const std::string message = error("");
    CHECK_MESSAGE(contains(message, named), "got: ", message);
  }
  const Set one("TUTTI_EPOCHS", "3"), other("TUTTI_NUM_EPOCHS", "4");
  CHECK(contains(error(""), "[environment TUTTI_NUM_EPOCHS: --num-epochs] expected what --epochs says"));
}

TEST_CASE("schedules") {
  const auto rate = [](const std::string& line, std::int64_t step) {
    return make_schedule(options("--epochs 10 --lr 1 --warmup-lr 0 " + line), 100)(Progress{step, 100, 1000, 128, 1});
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

TEST_CASE("what ranks compare does not depend on how many they are") {
  for (const char* line : {"--dataset synthetic", "--dataset synthetic --global-batch-size 96 --optimizer adamw",
                           "--dataset synthetic --macrobatch-size 1024", "--dataset synthetic --recipe fast",
                           "--dataset synthetic --lr 0.1 --warmup-epochs 1"}) {
    CAPTURE(std::string(line));
    const RunOptions one = options(line);
    RunOptions four = *parse(words(line));
    four.dry_run = true;
    four.dry_run_ranks = 4;
    check(four, 1);
    four.dry_run = false;
    four.dry_run_ranks = one.dry_run_ranks;
    CHECK(one.derived == four.derived);
    const io::Json a = options_json(one), b = options_json(four);
    int differ = 0;
    for (const auto& [name, value] : a.as_object()) {
      const bool same = io::write_json(value) == io::write_json(*b.find(name));
      differ += same ? 0 : 1;
      CHECK_MESSAGE((same || std::find(one.derived.begin(), one.derived.end(), name) != one.derived.end()), name);
    }
    CHECK(differ > 0);
  }
}
