// SPDX-License-Identifier: MIT
#include "tools/trainer/check_cifar10.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <tutti/optim/schedule_parse.hpp>

#include "tools/trainer/augmentation.hpp"
#include "tools/trainer/check_optimizer.hpp"
#include "tools/trainer/check_values.hpp"
#include "tools/trainer/scripted_options.hpp"

namespace tutti::trainer::detail {

namespace {

// Checks the RecordIO options, which replace the binary files.
void check_cifar10_records(RunOptions& o) {
  word("--decoder", o.decoder, {"auto", "turbojpeg", "stb"}, {{"libjpeg_turbo", "turbojpeg"}});
  for (const auto& [idx, rec, name] : {std::tuple{&o.data_train_idx, &o.data_train, "--data-train"},
                                       std::tuple{&o.data_val_idx, &o.data_val, "--data-val"}})
    if (!idx->empty() && rec->empty())
      fail<UsageError>(std::string(name) + "-idx", std::string(name) + ", the file that the list is for", "none");
  const bool any = !o.data_train.empty() || !o.data_val.empty();
  if (!any) {
    if (o.decoder != "auto")
      fail<UsageError>("--decoder", "--data-train with it, because other data are not decoded", "none");
    return;
  }
  if (o.dataset != "cifar10")
    fail<UsageError>(o.data_train.empty() ? "--data-val" : "--data-train",
                     "--dataset cifar10 and no --benchmark together with it", o.dataset, "give one of the two");
  if (!o.data_dir.empty() && !o.data_dir_from_environment)
    fail<UsageError>("--data", "no --data-train or --data-val together with it", o.data_dir, "give one of the two");
  if (o.data_train.empty() && !o.eval_only)
    fail<UsageError>("--data-train", "the training images", "--data-val alone",
                     "or use --eval-only to evaluate on these");
}

// In a job that scripts start, --max-steps sets its length unless --epochs is given.
void check_scripted(RunOptions& o) {
  if (o.strategy == "auto" && o.kv_store.empty()) o.strategy = "ps_async";
  if (o.strategy != "auto") word("--strategy", o.strategy, {"ps", "ps_async"});
  if (o.epochs > 0) return;
  if (o.max_steps == 0)
    fail<UsageError>("--max-steps", "1 or more steps of all workers together, or --epochs", "neither");
  number("--max-steps", o.max_steps, 1, std::int64_t{1} << 40);
  o.num_batches = o.max_steps;
  o.epochs = 1'000'000;
}

}  // namespace

void check_cifar10_data(RunOptions& o) {
  if (is_scripted(o)) check_scripted(o);
  word("--dataset", o.dataset, {"cifar10", "fashion_mnist", "synthetic"}, {{"fashionmnist", "fashion_mnist"}});
  if (o.benchmark) o.dataset = "synthetic";
  check_cifar10_records(o);
  // In a short run, large shifts do not improve the result.
  if (!o.pad_size) o.pad_size = o.epochs <= 20 ? 1 : o.epochs <= 60 ? 2 : 4;
  number("--pad-size", *o.pad_size, 0, 65536);
  word("--pad-mode", o.pad_mode, {"constant", "reflect"});
  number("--epochs", o.epochs, 1, 10'000'000);
  number("--centre-epochs", o.centre_epochs, 0, o.epochs);
  number("--fill-value", o.fill_value, 0, 255);
  check_augmentation(o);
  word("--epoch-end", o.epoch_end, {"short", "run-on"}, {{"run_on", "run-on"}});
  if (!(o.last_epoch > 0)) fail<UsageError>("--last-epoch", "over 0, to 1", text_of(o.last_epoch));
  number("--last-epoch", o.last_epoch, 0, 1);
  number("--whitening-images", o.whitening_images, 1, 1'000'000);
  number("--num-examples", o.num_examples, 0, std::int64_t{1} << 40);
  if (o.num_classes == 1) fail<UsageError>("--num-classes", "0 or 2 to 1048576", "1");
  number("--num-classes", o.num_classes, 0, 1 << 20);
  number("--data-nthreads", o.data_nthreads, 0, 1024);
  if (!o.image_shape.empty()) {
    const auto shape = schedule::parse_numbers("--image-shape", o.image_shape);
    bool good = shape.size() == 3;
    for (const double d : shape) good = good && d >= 1 && d <= 65536 && d == std::floor(d);
    if (!good) fail<UsageError>("--image-shape", "C,H,W, e.g. 3,28,28", o.image_shape);
  }
  for (const double m : schedule::parse_numbers("--rgb-mean", o.rgb_mean)) number("--rgb-mean", m, -1e6, 1e6);
  for (const double s : schedule::parse_numbers("--rgb-std", o.rgb_std)) number("--rgb-std", s, 1e-6, 1e6);
}

namespace {

// Returns the larger side of the net's input, in pixels.
double image_side(const RunOptions& o) {
  const auto shape = schedule::parse_numbers("--image-shape", o.image_shape);
  return shape.size() == 3 ? std::max(shape[1], shape[2]) : o.dataset == "fashion_mnist" ? 28 : 32;
}

}  // namespace

void check_cifar10_model(RunOptions& o) {
  word("--network", o.network,
       {"resnet", "resnet_postact", "resnet_preact", "resnet_imagenet", "cifar_fast", "airbench94", "airbench94_muon",
        "airbench96", "hive94", "wide_resnet"},
       {}, "docs/how-to/own-model.md shows how to train another net");
  number("--width", o.width, 1e-3, 64.0);
  number("--tta", o.tta, 0, 3);
  if (o.tta == 3 && o.logical_ranks > 0)
    fail<UsageError>("--tta", "0 to 2 with --logical-ranks, because each process chooses among its own images", "3");
  if (!(o.hardest > 0 && o.hardest <= 1)) fail<UsageError>("--hardest", "over 0, to 1", text_of(o.hardest));
  if (o.hardest < 1 && !whitens(o.network))
    fail<UsageError>("--hardest", "1, or a net that whitens its images", text_of(o.hardest) + " with " + o.network,
                     "use it with --recipe airbench96-faster, or with --network airbench96");
  for (const auto& [option, given] :
       {std::pair{"--logical-ranks", o.logical_ranks > 0}, {"--mixup", o.mixup > 0}, {"--cutmix", o.cutmix > 0}})
    if (o.hardest < 1 && given)
      fail<UsageError>("--hardest", std::string("1, or no ") + option, text_of(o.hardest),
                       std::string("leave ") + option + " out, or give --hardest 1");
  const bool wide = o.network == "wide_resnet", fast = whitens(o.network);
  if (!wide && !fast && o.width != 1)
    fail<UsageError>("--width", "1, or --network cifar_fast, airbench94 or wide_resnet", text_of(o.width));
  if (wide && o.width != std::floor(o.width)) fail<UsageError>("--width", "a whole number", text_of(o.width));
  if (wide && (o.depth < 10 || o.depth > 10000 || (o.depth - 4) % 6 != 0))
    fail<UsageError>("--depth", "6n+4 (10, 16, 28, 40) for --network wide_resnet", std::to_string(o.depth));
  if (fast) {
    // The net has one depth, which the user need not give. A recipe sets that of its own net.
    const std::int64_t depth = o.network == "airbench96" ? 11 : 8;
    if (o.depth != 20 && o.depth != depth && (o.recipe.empty() || (o.depth != 8 && o.depth != 11)))
      fail<UsageError>("--depth", std::to_string(depth) + " for --network " + o.network, std::to_string(o.depth));
    o.depth = depth;
  }
  const bool imagenet = o.depth == 18 || o.depth == 34 || o.depth == 101 || o.depth == 152;
  if (o.network == "resnet" && imagenet) o.network = "resnet_imagenet";
  // MXNet's "resnet" means this net for small images, and a net with one of torchvision's depths for larger images.
  if (o.network == "resnet" && image_side(o) <= 28) o.network = "resnet_preact";
  const bool bottleneck = o.network == "resnet_preact" && o.depth >= 164 && (o.depth - 2) % 9 == 0;
  if (o.network == "resnet_imagenet") {
    if (!imagenet && o.depth != 50) fail<UsageError>("--depth", "18, 34, 50, 101 or 152", std::to_string(o.depth));
  } else if (fast || wide) {
    for (const auto& [option, value] :
         {std::pair{"--initializer", o.initializer != "he"}, {"--zero-gamma", o.zero_gamma}})
      if (value) fail<UsageError>(option, "its default for --network " + o.network, "another value");
  } else if (o.depth < 8 || ((o.depth - 2) % 6 != 0 && !bottleneck) || o.depth > 10000) {
    fail<UsageError>("--depth", "6n+2 (8, 20, 32, 44, 50, 56, 110, ...) or 18, 34, 101, 152", std::to_string(o.depth));
  }
  word("--initializer", o.initializer, {"he", "xavier"}, {{"default", "he"}, {"msra", "he"}, {"kaiming", "he"}});
  if (o.network == "resnet_imagenet" && o.initializer != "he")
    fail<UsageError>("--initializer", "he for --network resnet_imagenet", o.initializer);
  check_loss(o);
  number("--top-k", o.top_k, 0, 1 << 20);
  if (o.top_k == 0) o.top_k = 5;
}

}  // namespace tutti::trainer::detail
