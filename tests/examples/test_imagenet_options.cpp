// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <stdlib.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "data/temp_folder.hpp"
#include "examples/common/check.hpp"
#include "examples/common/cli.hpp"
#include "examples/common/imagenet_table.hpp"
#include "examples/common/recipe.hpp"

using namespace tutti;
using namespace tutti::examples;
using test::contains;
using test::message_of;

namespace {

// Parsed and checked; synthetic images and 90 epochs unless the line says something else.
RunOptions options(const std::string& line, int processes = 1) {
  ::unsetenv("TUTTI_DATA");
  std::istringstream in("train_imagenet --synthetic --num_epochs 90 " + line);
  std::vector<std::string> list;
  for (std::string w; in >> w;) list.push_back(w);
  std::vector<char*> argv;
  for (auto& a : list) argv.push_back(a.data());
  auto o = parse_command_line(static_cast<int>(argv.size()), argv.data(), Program::train_imagenet);
  REQUIRE(o);
  check(*o, processes, {"solo", "mpi"});
  return *o;
}

std::string error(const std::string& line) {
  return message_of<UsageError>([&] { options(line); });
}

}  // namespace

TEST_CASE("every flag of the Horovod trainer, with its published default") {
  struct Case {
    const char* line;
    std::function<bool(const RunOptions&)> holds;
  };
  const Case cases[] = {
      {"", [](const auto& o) { return o.model == "resnet50" && o.depth == 50 && o.batch_size == 256; }},
      {"", [](const auto& o) { return o.lr == 0.1 && o.mom == 0.9 && o.wd == 1e-4 && o.optimizer == "nag"; }},
      {"", [](const auto& o) { return o.lr_schedule == "poly" && o.poly_power == 2 && o.lr_end == 1e-5; }},
      {"", [](const auto& o) { return o.warmup_epochs == 0.0 && o.warmup_lr == 0.001 && o.loss_scale == "1024"; }},
      {"", [](const auto& o) { return o.run_dir == "imagenet_resnet" && o.log_name == "hvd_train.log"; }},
      {"", [](const auto& o) { return o.disp_batches == 50 && o.save_steps == 1000 && *o.keep >= 1000; }},
      {"", [](const auto& o) { return o.zero_gamma && o.adv_conv_init && !o.use_larc && !o.increased_aug; }},
      {"", [](const auto& o) { return std::abs(*o.bn_eps - 1e-4) < 1e-12 && o.bn_momentum == 0.9 && o.eta == 0.013; }},
      {"",
       [](const auto& o) { return o.contrast == 0.6 && o.saturation == 0.6 && o.hue == 0.13 && o.brightness == 0.3; }},
      {"", [](const auto& o) { return o.cdr_first_decay_ratio == 0.33 && o.cdr_t_mul == 2 && o.cdr_m_mul == 0.1; }},
      {"", [](const auto& o) { return o.lc_periods == 0.47 && o.lc_alpha == 0 && o.lc_beta == 1e-5; }},
      {"-m resnet101 -b 32", [](const auto& o) { return o.depth == 101 && o.batch_size == 32 && o.lr == 0.0125; }},
      {"--model resnet18", [](const auto& o) { return o.depth == 18; }},
      {"--data_dir /x --nosynthetic", [](const auto& o) { return o.data_dir == "/x" && o.dataset == "imagenet"; }},
      {"--batch_size 64", [](const auto& o) { return o.batch_size == 64; }},
      {"--num_epochs 0 --num_batches 100", [](const auto& o) { return o.num_batches == 100; }},
      {"--num_batches 100", [](const auto& o) { return o.num_batches == 0 && o.epochs == 90; }},
      {"--log_dir /l --clear_log", [](const auto& o) { return o.run_dir == "/l" && o.clear_log; }},
      {"--log_name a.log --local_ckpt", [](const auto& o) { return o.log_name == "a.log" && o.local_ckpt; }},
      {"--display_every 7", [](const auto& o) { return o.disp_batches == 7; }},
      {"--eval --eval_interval 3 --num_gpus 8",
       [](const auto& o) { return o.eval_only && o.eval_interval == 3 && o.num_gpus == 8 && o.resume == "latest"; }},
      {"--nofp16", [](const auto& o) { return o.precision == "f32"; }},
      {"--no-fp16", [](const auto& o) { return o.precision == "f32"; }},
      {"--precision bf16 --nofp16", [](const auto& o) { return o.precision == "bf16"; }},
      {"--intra_op_parallelism_threads 1 --inter_op_parallelism_threads 5", [](const auto&) { return true; }},
      {"--num_parallel_calls 7", [](const auto& o) { return o.data_nthreads == 7; }},
      {"--save_checkpoints_steps 0", [](const auto& o) { return o.save_steps == 0 && o.save_period == 1; }},
      {"--save_summary_steps 10", [](const auto& o) { return o.save_summary_steps == 10; }},
      {"--noadv_bn_init --noadv_conv_init", [](const auto& o) { return !o.zero_gamma && !o.adv_conv_init; }},
      {"--lr 6.4 --mom 0.977 --wdecay 0.0005",
       [](const auto& o) { return o.lr == 6.4 && o.mom == 0.977 && o.wd == 5e-4; }},
      {"--loss_scale 256", [](const auto& o) { return trainer_options(o).loss_scale == 256; }},
      {"--loss_scale dynamic", [](const auto& o) { return trainer_options(o).dynamic_loss_scale; }},
      {"--warmup_lr 0.01 --warmup_epochs 10",
       [](const auto& o) { return o.warmup_lr == 0.01 && o.warmup_epochs == 10; }},
      {"--use_larc", [](const auto& o) { return o.optimizer == "larc" && o.lr == 3.7; }},
      {"--use_larc --leta 0.02", [](const auto& o) { return o.eta == 0.02; }},
      {"--increased_aug --contrast 0.5 --saturation 0.5 --hue 0.1 --brightness 1",
       [](const auto& o) { return o.increased_aug && o.contrast == 0.5 && o.hue == 0.1 && o.brightness == 1; }},
      {"--lr_decay_mode steps", [](const auto& o) { return o.lr_step_epochs == "30,60,80" && o.lr_factor == 0.1; }},
      {"--lr_decay_steps 30,60,80", [](const auto& o) { return o.lr_schedule == "poly" && o.lr_step_epochs.empty(); }},
      {"--preset torchvision",
       [](const auto& o) { return o.augmentation == "torchvision" && o.lr_schedule == "steps" && *o.bn_eps < 2e-5; }},
      {"--v1 --label_smoothing 0.1", [](const auto& o) { return o.v1 && o.label_smoothing == 0.1; }},
  };
  for (const auto& c : cases) {
    CAPTURE(c.line);
    CHECK(c.holds(options(c.line)));
  }
  CHECK(*options("-b 256", 256).lr == doctest::Approx(25.6));  // for the batch of all ranks
}

TEST_CASE("what train_imagenet refuses") {
  const struct {
    const char* line;
    const char* part;
  } cases[] = {
      {"--model vgg16", "[--model]"},
      {"-m", "[-m]"},
      {"--nosynthetic", "[--data-dir]"},
      {"--num_epochs 0", "[--num-epochs]"},
      {"--num_examples -1", "[--num-examples]"},
      {"--augmentation none", "[--augmentation]"},
      {"--decoder pil", "[--decoder]"},
      {"--on_bad_record ignore", "[--on-bad-record]"},
      {"--loss_scale 1,2", "[--loss-scale]"},
      {"--loss_scale 0", "[--loss-scale]"},
      {"--lr_decay_lrs 1,2", "[--lr-decay-lrs]"},
      {"--lr_decay_mode steps --lr_decay_lrs 1,2", "schedule::Piecewise"},
      {"--lr_decay_mode other", "[--lr-schedule]"},
      {"--preset cifar-resnet50-28", "[--preset]"},
      {"--log_name a/b", "[--log-name]"},
      {"--clear_log --eval", "[--clear-log]"},
      {"--depth 50", "--depth"},
      {"--intra_op_parallelism_threads many", "[--intra-op-parallelism-threads]"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.line);
    CHECK(contains(error(c.line), c.part));
  }
}

TEST_CASE("the six decay modes reach the optimizer") {
  const auto rate = [](const std::string& line, std::int64_t step) {
    const RunOptions o = options("--lr 6.4 --warmup_epochs 10 --warmup_lr 0.001 " + line);
    const Schedule s = make_schedule(o, 78);
    return s(Progress{step, 78, 78 * 90, 16384, 64});
  };
  CHECK(rate("", 0) == doctest::Approx(0.001));
  CHECK(rate("", 780) == doctest::Approx(6.4));
  CHECK(rate("", 7020) == doctest::Approx(1e-5));
  const double half = (6.4 - 1e-5) * 0.25 + 1e-5;
  CHECK(rate("", 780 + 3120) == doctest::Approx(half));
  CHECK(rate("--lr_decay_mode poly_cycle", 780 + 3120) == doctest::Approx(half));
  CHECK(rate("--lr_decay_mode cosine", 780 + 3120) == doctest::Approx(3.2));
  CHECK(rate("--lr_decay_mode cosine_decay_restarts", 780) == doctest::Approx(6.4));
  CHECK(rate("--lr_decay_mode linear_cosine", 780) == doctest::Approx(6.4 * (1 + 1e-5)));
  CHECK(rate("--lr_decay_mode steps", 78 * 29) == doctest::Approx(6.4));
  CHECK(rate("--lr_decay_mode steps", 78 * 30) == doctest::Approx(0.64));
  CHECK(rate("--lr_decay_mode steps", 78 * 80) == doctest::Approx(0.0064));
  CHECK(rate("--lr_decay_mode steps --lr_decay_lrs 6.4,1,0.5,0.1", 78 * 60) == doctest::Approx(0.5));
}

TEST_CASE("the published tables' columns") {
  StepReport r;
  r.step = 50;
  r.images_per_second = 5874.25;
  r.train_loss = 6.91234;
  r.lr = 0.051249;
  CHECK(imagenet_row(r, 1.25, 0.4) == "    50   1.2  5874.2  6.912  7.312 0.05125");
  r.step = 1234567;
  CHECK(imagenet_row(r, 1.25, 0) == "1234567   1.2  5874.2  6.912  6.912 0.05125");
  EvaluationReport e;
  e.top1 = 0.75716;
  e.topk = 0.9291;
  e.loss = 1.0223;
  CHECK(imagenet_evaluation_row(14075, 90, e, 1541030400) ==
        "14075    90  75.716  92.910   1.0223   UTC:2018-11-01 00:00:00");
}
