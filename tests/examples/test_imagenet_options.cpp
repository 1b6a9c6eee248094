// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/isa.hpp>

#include "data/temp_folder.hpp"
#include "tools/trainer/check.hpp"
#include "tools/trainer/cli.hpp"
#include "tools/trainer/imagenet_table.hpp"
#include "tools/trainer/recipe.hpp"

using namespace tutti;
using namespace tutti::trainer;
using test::contains;
using test::message_of;

namespace {

// Parses and checks a command line. It uses synthetic images and 90 epochs unless the line has other values.
RunOptions options(const std::string& line, int processes = 1, bool gpu = false) {
  ::unsetenv("TUTTI_DATA");
  std::istringstream in("train_imagenet --synthetic --num-epochs 90 " + line);
  std::vector<std::string> list;
  for (std::string w; in >> w;) list.push_back(w);
  std::vector<char*> argv;
  for (auto& a : list) argv.push_back(a.data());
  auto o = parse_command_line(static_cast<int>(argv.size()), argv.data(), Program::train_imagenet);
  REQUIRE(o);
  check(*o, {processes, {"solo", "mpi"}, gpu});
  return *o;
}

Schema small_images() {
  Schema s;
  s.channels = 3;
  s.height = s.width = 32;
  s.classes = 4;
  s.mean = {128, 128, 128};
  s.stddev = {64, 64, 64};
  return s;
}

std::string error(const std::string& line) {
  return message_of<UsageError>([&] { options(line); });
}

bool has_note(const RunOptions& o, const char* part) {
  return std::any_of(o.notes.begin(), o.notes.end(),
                     [&](const std::string& n) { return n.find(part) != std::string::npos; });
}
// The number of notes, without the one of a processor that has no bf16.
std::ptrdiff_t notes_of_options(const RunOptions& o) {
  return std::count_if(o.notes.begin(), o.notes.end(), [](const std::string& n) { return !n.starts_with("--fp16"); });
}

}  // namespace

TEST_CASE("every flag of the Horovod trainer has its published default") {
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
      {"--lr_decay_lrs= --display_every 7", [](const auto& o) { return o.disp_batches == 7 && o.lr_step_lrs.empty(); }},
      {"--num_epochs 0 --num_batches 100", [](const auto& o) { return o.num_batches == 100; }},
      {"--num_batches 100", [](const auto& o) { return o.num_batches == 0 && o.epochs == 90; }},
      {"--log_dir /l --clear_log", [](const auto& o) { return o.run_dir == "/l" && o.clear_log; }},
      {"--log_name a.log --local_ckpt", [](const auto& o) { return o.log_name == "a.log" && o.local_ckpt; }},
      {"--display_every 7", [](const auto& o) { return o.disp_batches == 7; }},
      {"--nosynthetic --data_dir /x --eval --eval_interval 3 --num_gpus 8",
       [](const auto& o) { return o.eval_only && o.eval_interval == 3 && o.num_gpus == 8 && o.resume == "latest"; }},
      {"--nofp16", [](const auto& o) { return o.precision == "f32"; }},
      {"--no-fp16", [](const auto& o) { return o.precision == "f32"; }},
      {"--precision bf16 --nofp16", [](const auto& o) { return o.precision == "bf16"; }},
      {"--intra_op_parallelism_threads 3 --inter_op_parallelism_threads 1",
       [](const auto& o) { return o.threads == 3; }},
      {"--num_parallel_calls 7", [](const auto& o) { return o.data_nthreads == 7; }},
      {"--save_checkpoints_steps 0", [](const auto& o) { return fit_options(o, 100'000).save_every_steps == 390; }},
      {"--save_checkpoints_steps 7",
       [](const auto& o) {
         const FitOptions f = fit_options(o, 100'000);
         return f.save_every_steps == 7 && f.save_every == 0 && f.save_last && f.evaluate_every == 0;
       }},
      {"--save_summary_steps 10", [](const auto& o) { return fit_options(o, 100'000).summary_every == 10; }},
      {"", [](const auto& o) { return fit_options(o, 100'000).summary_every == 390; }},
      {"--evaluate-every 2", [](const auto& o) { return fit_options(o, 100'000).evaluate_every == 2; }},
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
      {"--aa ta_wide --train-interpolation bicubic --augmentation torchvision --val-resize-size 232",
       [](const auto& o) {
         return o.auto_augment == "ta_wide" && o.interpolation == "bicubic" && o.eval_resize == 232;
       }},
      {"--crop-pct 0.95 --random-erase 0.1", [](const auto& o) { return o.crop_pct == 0.95 && o.random_erase == 0.1; }},
      {"--lr_decay_mode steps", [](const auto& o) { return o.lr_step_epochs == "30,60,80" && o.lr_factor == 0.1; }},
      // Defaults of the Horovod trainer have no effect in another mode, even if the line gives them. Options on a line
      // without a mode have an effect.
      {"--lr_decay_mode poly --lr_decay_steps 30,60,80 --lr_decay_factor 0.1 --lr_decay_lrs=",
       [](const auto& o) { return o.lr_schedule == "poly" && o.lr_step_epochs.empty() && !o.lr_factor; }},
      {"--lr-step-epochs 30,60",
       [](const auto& o) {
         return o.lr_schedule == "steps" && o.lr_step_epochs == "30,60" && notes_of_options(o) == 1;
       }},
      {"--lr_decay_factor 0.2",
       [](const auto& o) { return o.lr_schedule == "steps" && o.lr_step_epochs == "30,60,80" && o.lr_factor == 0.2; }},
      {"--lr_decay_steps 1,2 --lr_decay_lrs 3,2,1", [](const auto& o) { return o.lr_schedule == "steps"; }},
      {"--lr 6.4 --lr_decay_mode steps --lr_decay_factor 0.1",
       [](const auto& o) { return o.lr == 6.4 && o.lr_schedule == "steps" && o.lr_factor == 0.1; }},
      {"", [](const auto& o) { return o.lr_schedule == "poly" && notes_of_options(o) <= 1; }},
      {"", [](const auto& o) { return o.decay_biases && !o.decay_all && !o.evaluate_every; }},
      {"--preset torchvision", [](const auto& o) { return !o.decay_biases && o.evaluate_every == 1; }},
      {"--print-schedule --dry-run-ranks 32",
       [](const auto& o) { return o.dry_run && o.global_batch_size == 8192 && o.lr == 3.2; }},
      {"--preset torchvision",
       [](const auto& o) { return o.augmentation == "torchvision" && o.lr_schedule == "steps" && *o.bn_eps < 2e-5; }},
      {"", [](const auto& o) { return o.stem == "imagenet"; }},
      {"--image_size 64", [](const auto& o) { return o.stem == "imagenet"; }},
      {"--image_size 63", [](const auto& o) { return o.stem == "small" && has_note(o, "below 64"); }},
      {"--image_size 63 --stem imagenet", [](const auto& o) { return o.stem == "imagenet"; }},
      {"--stem small", [](const auto& o) { return o.stem == "small" && has_note(o, "(--stem small)"); }},
      // The program prints the table of the Horovod trainer if the options are spelled as in that trainer.
      {"--num_epochs 2", [](const auto& o) { return o.as_table && !fit_options(o, 1000).report_epochs; }},
      {"--num-epochs 2 --log-dir a_b", [](const auto& o) { return !o.as_table && fit_options(o, 1000).report_epochs; }},
      {"--v1 --label_smoothing 0.1", [](const auto& o) { return o.v1 && o.label_smoothing == 0.1; }},
  };
  for (const auto& c : cases) {
    CAPTURE(c.line);
    CHECK(c.holds(options(c.line)));
  }
  CHECK(*options("-b 256", 256).lr == doctest::Approx(25.6));  // for the batch of all ranks together
}

TEST_CASE("the error of train_imagenet for a bad option names the option") {
  const struct {
    const char* line;
    const char* part;
  } cases[] = {
      {"--model vgg16", "[--model]"},
      {"--stem 7x7", "[--stem] expected auto, imagenet or small"},
      {"--backend gpu",
       "[--backend] expected auto, reference, eigen, onednn or cuda, got gpu. hint: did you mean cuda"},
      {"--backend cpu", "did you mean auto"},
      {"-m", "[-m]"},
      {"--nosynthetic", "[--data-dir]"},
      {"--num_epochs 0", "[--num-epochs]"},
      {"--num_examples -1", "[--num-examples]"},
      {"--auto-augment rand-mst0.5", "did you mean mstd"},
      {"--interpolation nearest", "[--interpolation] expected bilinear, bicubic or random"},
      {"--crop-pct 1.1", "[--crop-pct] expected 0.1 to 1"},
      {"--augmentation torchvision --eval-resize 100", "[--eval-resize] expected 224 to 65536"},
      {"--eval-resize 256", "[--eval-resize] expected --augmentation torchvision"},
      {"--augmentation torchvision --eval-resize 256 --crop-pct 0.9", "[--crop-pct] expected no --eval-resize"},
      {"--augmentation none", "[--augmentation]"},
      {"--decoder pil", "[--decoder]"},
      {"--on_bad_record ignore", "[--on-bad-record]"},
      {"--loss_scale 1,2", "[--loss-scale]"},
      {"--loss_scale 0", "[--loss-scale]"},
      {"--lr_decay_lrs 1,2", "[--lr-decay-lrs] expected 4 rates"},
      {"--lr_decay_mode steps --lr_decay_lrs 1,2", "[--lr-decay-lrs] expected 4 rates"},
      {"--lr_decay_mode poly --lr_decay_lrs 1,2", "[--lr-decay-lrs] expected --lr-decay-mode steps"},
      {"--lr_decay_mode cosine --lr-step-epochs 30,60", "[--lr-decay-steps] expected --lr-decay-mode steps"},
      {"--lr_decay_mode poly --lr_decay_factor 0.5", "[--lr-decay-factor]"},
      {"--lr_decay_steps 1 --lr_decay_lrs 1,2 --lr_decay_factor 0.5", "[--lr-decay-factor]"},
      {"--eval", "[--eval] expected --data-dir"},
      {"--inter_op_parallelism_threads -1", "[--inter-op-parallelism-threads] expected 0 to 4096"},
      {"--intra_op_parallelism_threads 2 --threads 3", "[--intra-op-parallelism-threads]"},
      {"--dry-run-ranks 4", "[--dry-run-ranks]"},
      {"--print-schedule --num_epochs 0", "[--num-epochs]"},
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

TEST_CASE("the optimizer is set up for each of the six decay modes") {
  const auto rate = [](const std::string& line, std::int64_t step) {
    const RunOptions o = options("--lr 6.4 --warmup_epochs 10 --warmup_lr 0.001 " + line);
    const Schedule s = make_schedule(o, 78);
    return s(SchedulePoint{step, 78, 78 * 90, 16384, 64});
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

TEST_CASE("--fp16 selects the 16-bit format of the backend, even if the processor next to a GPU has another format") {
  CHECK(options("", 1, true).precision == "bf16");
  CHECK(options("", 1, true).any_half);  // f16 is used if the GPU has no bf16
  CHECK_FALSE(options("--precision bf16", 1, true).any_half);
  CHECK(options("--backend cuda").precision == "bf16");
  CHECK(options("--nofp16", 1, true).precision == "f32");
  CHECK(options("--precision f16", 1, true).precision == "f16");
  CHECK(options("--gpus=", 1, true).backend != "cuda");
  const RunOptions o = options("");
  const bool has = cpu::has_bf16(cpu::detect_isa());
  CHECK(o.precision == (has ? "bf16" : "f32"));
  CHECK(o.notes.size() == (has ? 0 : 1));
}

TEST_CASE("the option names of MXNet's scripts are accepted") {
  // The options with which run.sh starts train_resnet.py, but with synthetic images.
  RunOptions o = options(
      "--use-rec --batch-size 4096 --model resnet50_v1b --mode hybrid --num-epochs 90 --lr 1.6 --lr-mode poly "
      "--warmup-epochs 5 "
      "--warmup-lr 0.001 --last-gamma --kvstore dist_sync_device --save-frequency 10 --save-dir params --logging-dir "
      "logs "
      "--log-interval 50 -j 8 --momentum 0.9 --wd 0.0001 --lr-poly-power 2",
      16);
  CHECK(o.model == "resnet50");
  CHECK_FALSE(o.v1);
  CHECK(o.global_batch_size == 4096);
  CHECK(o.batch_size == 256);
  CHECK(o.lr == 1.6);
  CHECK(o.lr_schedule == "poly");
  CHECK(o.run_dir == "params");
  CHECK(o.log_dir == "logs");
  CHECK(o.data_nthreads == 8);
  CHECK(o.zero_gamma);
  const FitOptions f = fit_options(o, 1'281'167);
  CHECK(f.save_every == 10);
  CHECK(f.save_every_steps == 0);
  o = options("--use-rec --lr-mode step --lr-decay 0.5 --lr-decay-epoch 40,60 --lr 6.4");
  CHECK(o.lr_schedule == "steps");
  CHECK(make_schedule(o, 100)(SchedulePoint{40 * 100, 100, 9000, 256, 1}) == doctest::Approx(3.2));
  // train_imagenet.py with the options of fit.py and data.py.
  o = options("--network resnet --num-layers 101 --image-shape 3,128,128 --disp-batches 20");
  CHECK(o.model == "resnet101");
  CHECK(o.image_size == 128);
  CHECK(options("--model resnet34_v1").v1);
  CHECK(options("--preset mxnet").global_batch_size == 128);
  CHECK(options("--preset mxnet").log_lines == "mxnet");
  for (const auto& c :
       {std::pair{"--network vgg", "[--network] expected resnet, got 'vgg'. hint: this program trains ResNets"},
        {"--num-layers 20", "[--num-layers] expected 18, 34, 50, 101 or 152"},
        {"--model resnet50_v2", "[--model]"},
        {"--image-shape 3,224,128", "[--image-shape] expected 3,N,N"},
        {"--mode eager", "[--mode]"},
        {"--data-train a.rec", "[--data-train] expected no --synthetic together with it"},
        {"--rec-val-idx a.idx", "[--data-val-idx] expected --data-val"},
        {"--save-dir a --log-dir b", "another name of this option"}}) {
    CAPTURE(c.first);
    CHECK_MESSAGE(contains(error(c.first), c.second), error(c.first));
  }
}

TEST_CASE("any number of inter-op threads is accepted, and a note explains its effect") {
  CHECK(options("--inter_op_parallelism_threads 5").inter_op_threads == 5);
  const auto said = [](const std::string& line) {
    for (const std::string& n : options(line).notes)
      if (contains(n, "--inter-op-parallelism-threads")) return n;
    return std::string();
  };
  CHECK(said("--inter_op_parallelism_threads 5") ==
        "no effect: --inter-op-parallelism-threads 5: ops run one after the other, each on all threads "
        "(--threads)");
  CHECK(said("--inter_op_parallelism_threads 1").empty());
}

TEST_CASE("--use_larc is LARC with Nesterov momentum") {
  const AnyOptimizer larc = make_optimizer(options("--use_larc --mom 0.977"));
  CHECK(larc.per_tensor());
  const auto& update = std::get<SgdUpdate>(larc.update_op());
  CHECK(update.nesterov);
  CHECK(update.momentum == 0.977);
}

TEST_CASE("the recipe of the Horovod trainer decays the classifier's bias but not batch norm") {
  const auto decaying = [](const std::string& line) {
    const RunOptions o = options(line + " --image-size 32 -m resnet18");
    std::string names;
    for (const Value& v : make_model(o, small_images()).values)
      if (v.storage == Storage::parameter && v.decay && !v.name.ends_with("conv1.weight") &&
          !v.name.ends_with("conv2.weight") && !v.name.ends_with("downsample.0.weight"))
        names += v.name + " ";
    return names;
  };
  CHECK(decaying("") == "fc.weight fc.bias ");
  CHECK(decaying("--preset torchvision") == "fc.weight ");
}

TEST_CASE("--noadv_conv_init initialises convolutions with the method of Glorot and Bengio") {
  const auto kind = [](const std::string& line) {
    const RunOptions o = options(line + " --image-size 32 -m resnet18");
    Init init{};
    for (const Value& v : make_model(o, small_images()).values)
      if (v.name == "layer2.0.conv1.weight" && v.storage == Storage::parameter) init = v.init.kind;
    return init;
  };
  CHECK(kind("") == Init::he_normal);
  CHECK(kind("--noadv_conv_init") == Init::xavier_uniform);
}

TEST_CASE("the printed table has the columns of the published tables") {
  StepReport r;
  r.step = 50;
  r.images_per_second = 5874.25;
  r.train_loss = 6.91234;
  r.lr = 0.05;
  r.next_lr = 0.051249;
  CHECK(imagenet_row(r, 1.25, 0.4) == "    50   1.2  5874.2  6.912  7.312 0.05125");
  r.step = 1234567;
  CHECK(imagenet_row(r, 1.25, 0) == "1234567   1.2  5874.2  6.912  6.912 0.05125");
  EvaluationReport e;
  e.top1 = 0.75716;
  e.topk = 0.9291;
  e.loss = 1.0223;
  CHECK(imagenet_evaluation_row(14075, 90, e, 1541030400) ==
        "14075   90.0  75.716   92.91    1.02  UTC:2018-11-01 00:00:00");
}
