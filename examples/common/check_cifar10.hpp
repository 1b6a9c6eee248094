// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include <tutti/optim/schedule_parse.hpp>

#include "check_values.hpp"
#include "options.hpp"

namespace tutti::examples::detail {

inline void check_cifar10_data(RunOptions& o) {
  word("--dataset", o.dataset, {"cifar10", "fashion_mnist", "synthetic"}, {{"fashionmnist", "fashion_mnist"}});
  if (o.benchmark) o.dataset = "synthetic";
  // A short run has no time to learn what far shifts teach.
  if (!o.pad_size) o.pad_size = o.epochs <= 20 ? 1 : o.epochs <= 60 ? 2 : 4;
  number("--pad-size", *o.pad_size, 0, 65536);
  number("--epochs", o.epochs, 1, 10'000'000);
  number("--centre-epochs", o.centre_epochs, 0, o.epochs);
  number("--fill-value", o.fill_value, 0, 255);
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

inline void check_cifar10_model(RunOptions& o) {
  word("--network", o.network, {"resnet", "resnet_preact", "resnet_imagenet"});
  const bool imagenet = o.depth == 18 || o.depth == 34 || o.depth == 101 || o.depth == 152;
  if (o.network == "resnet" && imagenet) o.network = "resnet_imagenet";
  if (o.network == "resnet_imagenet") {
    if (!imagenet && o.depth != 50) fail<UsageError>("--depth", "18, 34, 50, 101 or 152", std::to_string(o.depth));
  } else if (o.depth < 8 || (o.depth - 2) % 6 != 0 || o.depth > 10000) {
    fail<UsageError>("--depth", "6n+2 (8, 20, 32, 44, 50, 56, 110, ...) or 18, 34, 101, 152", std::to_string(o.depth));
  }
  word("--initializer", o.initializer, {"he", "xavier"}, {{"default", "he"}, {"msra", "he"}, {"kaiming", "he"}});
  if (o.network == "resnet_imagenet" && o.initializer != "he")
    fail<UsageError>("--initializer", "he for --network resnet_imagenet", o.initializer);
  number("--label-smoothing", o.label_smoothing, 0, 0.999);
  number("--top-k", o.top_k, 0, 1 << 20);
  if (o.top_k == 0) o.top_k = 5;
}

}  // namespace tutti::examples::detail
