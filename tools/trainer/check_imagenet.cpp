// SPDX-License-Identifier: MIT
#include "tools/trainer/check_imagenet.hpp"

#include <cctype>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include <tutti/models/imagenet_net.hpp>
#include <tutti/optim/schedule_parse.hpp>

#include "tools/trainer/augmentation.hpp"
#include "tools/trainer/check_optimizer.hpp"
#include "tools/trainer/check_values.hpp"
#include "tools/trainer/image_sizes.hpp"
#include "tools/trainer/mxnet_options.hpp"

namespace tutti::trainer::detail {

void check_imagenet_data(RunOptions& o) {
  if (o.benchmark) o.dataset = "synthetic";
  check_mxnet_data(o);
  const bool records = !o.data_train.empty() || !o.data_val.empty();
  if (!o.benchmark && !records && o.data_dir.empty() && (!o.dry_run || o.print_schedule))
    fail<UsageError>("--data-dir", "the folder of the images, or --synthetic", "neither",
                     o.program == Program::tutti_train
                         ? "the folder is the first word: tutti-train FOLDER"
                         : "class folders, TFRecords, RecordIO and packed shards are read without conversion");
  number("--num-examples", o.num_examples, 0, std::int64_t{1} << 40);
  // MXNet's scripts pass the number of images in the records, which is not needed.
  if (!o.benchmark && o.num_examples > 0 && !records)
    fail<UsageError>("--num-examples", "--synthetic together with it", "a data set, of which all images are used");
  check_image_sizes(o);
  word("--augmentation", o.augmentation, {"horovod", "torchvision"});
  number("--contrast", o.contrast, 0, 10);
  number("--saturation", o.saturation, 0, 10);
  number("--hue", o.hue, 0, 1);
  number("--brightness", o.brightness, 0, 255);
  number("--pca-noise", o.pca_noise, 0, 10);
  check_augmentation(o);
  if (o.crop_area != 0) number("--crop-area", o.crop_area, 0.001, 1);
  if (o.crop_area != 0 && o.augmentation != "torchvision")
    fail<UsageError>("--crop-area", "--augmentation torchvision together with it", o.augmentation, "leave it out");
  if (o.validation_share != 0) number("--validation-share", o.validation_share, 0.001, 0.9);
  if (o.validation_share != 0 && (o.benchmark || records))
    fail<UsageError>("--validation-share", "--data-dir with images to divide", o.benchmark ? "--synthetic" : "records",
                     "leave it out");
  if (o.crop_pct != 0) number("--crop-pct", o.crop_pct, 0.1, 1);
  if (o.eval_resize != 0) number("--eval-resize", o.eval_resize, o.eval_size, 65536);
  if (o.eval_resize != 0 && o.crop_pct != 0)
    fail<UsageError>("--crop-pct", "no --eval-resize together with it", std::to_string(o.eval_resize),
                     "give one of the two");
  if (o.eval_resize != 0 && o.augmentation == "horovod")
    fail<UsageError>("--eval-resize", "--augmentation torchvision together with it", "horovod",
                     "or give --crop-pct, the central share of each side");
  for (const double m : schedule::parse_numbers("--rgb-mean", o.rgb_mean)) number("--rgb-mean", m, -1e6, 1e6);
  for (const double s : schedule::parse_numbers("--rgb-std", o.rgb_std)) number("--rgb-std", s, 1e-6, 1e6);
  if (o.num_classes == 1) fail<UsageError>("--num-classes", "0 or 2 to 1048576", "1");
  number("--num-classes", o.num_classes, 0, 1 << 20);
  number("--num-parallel-calls", o.data_nthreads, 0, 1024);
  word("--decoder", o.decoder, {"auto", "turbojpeg", "stb"}, {{"libjpeg_turbo", "turbojpeg"}});
  word("--on-bad-record", o.on_bad_record, {"fail", "skip"});
}

void check_imagenet_model(RunOptions& o) {
  check_mxnet_model(o);
  word("--model", o.model,
       std::vector<std::string>(std::begin(models::imagenet_nets), std::end(models::imagenet_nets)));
  // torchvision's plain ResNets have a depth; the name of another net says everything.
  const bool plain = o.model.starts_with("resnet") && std::isdigit(static_cast<unsigned char>(o.model.back())) != 0;
  const bool residual = o.model != "mobilenet_v2" && o.model != "convnext_tiny";
  o.network = plain ? "resnet_imagenet" : o.model;
  o.depth = plain ? std::stoll(o.model.substr(6)) : 0;
  if (!plain && o.v1) fail<UsageError>("--v1", "a plain ResNet", o.model);
  if (!residual) {
    const std::string why = "its default for --model " + o.model;
    if (o.stem == "small") fail<UsageError>("--stem", why, o.stem);
    if (!o.adv_conv_init) fail<UsageError>("--adv-conv-init", why, "false");
    o.stem = "imagenet";
  }
  word("--stem", o.stem, {"auto", "imagenet", "small"});
  const bool chosen = o.stem != "auto";
  if (!chosen) o.stem = o.image_size < 64 ? "small" : "imagenet";
  if (o.stem == "small")
    o.notes.push_back(std::string("the net has the stem for small images, a 3x3 convolution of stride 1 without "
                                  "pooling (--stem small") +
                      (chosen ? ")" : ", because --image-size is below 64; --stem imagenet has the 7x7 of stride 2)"));
  // The recipes set 1e-5 for every net.
  if (o.model == "convnext_tiny" && o.bn_eps && (o.recipe.empty() || *o.bn_eps != 1e-5))
    fail<UsageError>("--bn-eps", "a net with batch norm; convnext_tiny has layer norms with an eps of 1e-6",
                     text_of(*o.bn_eps), "leave it out");
  if (!o.bn_eps) o.bn_eps = o.augmentation == "horovod" ? 1e-4 : 1e-5;
  number("--bn-eps", *o.bn_eps, 1e-12, 1);
  number("--tta", o.tta, 0, 2);
  if (o.drop_path) number("--drop-path", *o.drop_path, 0, 0.999);
  if (o.model == "mobilenet_v2" && o.drop_path && *o.drop_path > 0)
    fail<UsageError>("--drop-path", "a net with residual branches that may be left out, such as resnet50", o.model);
  if (o.blur_pool && (o.model == "mobilenet_v2" || o.model == "convnext_tiny"))
    fail<UsageError>("--blur-pool", "a ResNet", o.model);
  number("--bn-momentum", o.bn_momentum, 0, 0.999999);
  if (o.model == "convnext_tiny" && o.bn_momentum != 0.9)
    fail<UsageError>("--bn-momentum", "a net with batch norm, or 0.9", text_of(o.bn_momentum));
  check_loss(o);
}

void check_imagenet_run(RunOptions& o) {
  number("--num-epochs", o.epochs, 0, 10'000'000);
  number("--num-batches", o.num_batches, 0, std::int64_t{1} << 40);
  if (o.epochs > 0) o.num_batches = 0;
  if (o.epochs == 0 && o.num_batches == 0) {
    if (!o.eval_only && (!o.dry_run || o.print_schedule) && !o.test_io)
      fail<UsageError>("--num-epochs", "the length of the run, here or as --num-batches", "neither");
    o.epochs = 1;
  }
  if (o.print_schedule) o.dry_run = true;
  if (o.num_gpus) number("--num-gpus", *o.num_gpus, 1, 1'000'000);
  number("--eval-interval", o.eval_interval, 0, std::int64_t{1} << 40);
  number("--save-summary-steps", o.save_summary_steps, 0, std::int64_t{1} << 40);
  if (o.run_dir.empty()) fail<UsageError>("--log-dir", "a folder", "none");
  if (o.log_name.empty() || o.log_name.find('/') != std::string::npos)
    fail<UsageError>("--log-name", "the name of a file in --log-dir", "'" + o.log_name + "'");
  if (o.clear_log && (o.eval_only || !o.resume.empty()))
    fail<UsageError>("--clear-log", "no --eval and no --resume together with it", "one of them");
  if (o.eval_only && o.benchmark)
    fail<UsageError>("--eval", "--data-dir with validation images", "--synthetic",
                     "the classes of synthetic images cannot be distinguished");
  if (o.eval_only && o.resume.empty() && o.pretrained.empty()) o.resume = "latest";
  if (o.use_larc) o.optimizer = "larc";
  if (!o.warmup_epochs) o.warmup_epochs = 0;
  if (!o.keep) o.keep = 1'000'000;
  // fit_options() converts --save-checkpoints-steps 0 to the steps of an epoch.
  o.save_period = o.save_frequency.value_or(0);
  number("--save-frequency", o.save_period, 0, 10'000'000);
  if (o.save_period > 0) o.save_steps = 0;
  number("--intra-op-parallelism-threads", o.intra_op_threads, 0, 4096);
  if (o.intra_op_threads > 0 && o.threads > 0 && o.threads != o.intra_op_threads)
    fail<UsageError>("--intra-op-parallelism-threads", "the value of --threads, " + std::to_string(o.threads),
                     std::to_string(o.intra_op_threads), "give one of the two");
  if (o.intra_op_threads > 0) o.threads = o.intra_op_threads;
  number("--inter-op-parallelism-threads", o.inter_op_threads, 0, 4096);
  if (o.inter_op_threads > 1)
    o.notes.push_back("no effect: --inter-op-parallelism-threads " + std::to_string(o.inter_op_threads) +
                      ": ops run one after the other, each on all threads (--threads)");
  if (o.loss_scale == "dynamic") return;
  try {
    const auto values = schedule::parse_numbers("--loss-scale", o.loss_scale);
    if (values.size() == 1) return number("--loss-scale", values[0], 1e-6, 1e30);
  } catch (const UsageError&) {
  }
  fail<UsageError>("--loss-scale", "a number or dynamic", "'" + o.loss_scale + "'");
}

void check_imagenet_steps(RunOptions& o) {
  const bool given = !o.lr_step_epochs.empty() || !o.lr_step_lrs.empty() || o.lr_factor;
  if (o.lr_schedule == "auto") {
    o.lr_schedule = given ? "steps" : "poly";
    if (given)
      o.notes.push_back(
          "the learning rate changes in steps (--lr-decay-mode steps), because their epochs, rates or factor are "
          "given");
  }
  if (o.lr_schedule != "steps") {
    // Scripts of the Horovod trainer pass its default values in every mode; they have no effect there either.
    if (schedule::parse_numbers("--lr-decay-steps", o.lr_step_epochs) == std::vector<double>{30, 60, 80})
      o.lr_step_epochs.clear();
    if (o.lr_factor == 0.1) o.lr_factor.reset();
    const char* option = !o.lr_step_epochs.empty() ? "--lr-decay-steps"
                         : !o.lr_step_lrs.empty()  ? "--lr-decay-lrs"
                                                   : "--lr-decay-factor";
    if (!o.lr_step_epochs.empty() || !o.lr_step_lrs.empty() || o.lr_factor)
      fail<UsageError>(option, "--lr-decay-mode steps together with it", o.lr_schedule, "leave one of the two out");
    return;
  }
  if (o.lr_step_epochs.empty()) o.lr_step_epochs = "30,60,80";
  if (o.lr_step_lrs.empty()) return;
  if (o.lr_factor) fail<UsageError>("--lr-decay-factor", "no --lr-decay-lrs together with it", o.lr_step_lrs);
  const auto epochs = schedule::parse_numbers("--lr-decay-steps", o.lr_step_epochs),
             rates = schedule::parse_numbers("--lr-decay-lrs", o.lr_step_lrs);
  if (rates.size() != epochs.size() + 1)
    fail<UsageError>("--lr-decay-lrs",
                     std::to_string(epochs.size() + 1) + " rates, one more than the epochs of --lr-decay-steps",
                     o.lr_step_lrs);
  (void)schedule::Piecewise(epochs, rates);
}

}  // namespace tutti::trainer::detail
