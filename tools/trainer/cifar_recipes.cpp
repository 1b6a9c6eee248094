// SPDX-License-Identifier: MIT
#include "tools/trainer/cifar_recipes.hpp"

#include <cmath>
#include <cstdint>
#include <string>

#include "tools/trainer/check_optimizer.hpp"
#include "tools/trainer/check_values.hpp"

namespace tutti::trainer {

namespace {

// The originals take the sum of the losses of a batch, and tutti their mean: its rate is theirs times the batch, and
// its decay theirs divided by the batch.

// The parts that all records have. last_epoch: the share of the last epoch.
void common(RunOptions& o, const char* network, std::int64_t batch, std::int64_t epochs, double last_epoch) {
  o.network = network;
  o.depth = o.network == "airbench96" ? 11 : 8;
  o.batch_size = batch;
  o.batch_of = "job";
  o.epochs = epochs;
  o.last_epoch = last_epoch;
  o.epoch_end = "run-on";
  o.pad_size = 2;
  o.pad_mode = "reflect";
  o.whitening_images = 5000;
  o.label_smoothing = 0.2;
  o.lr_schedule = "linear";
  o.lr_end = 0;
  o.early_parameters = "whitening.bias";
  o.precision = "bf16";
  o.any_half = true;
  o.tta = 2;
  // Evaluates only at the end.
  o.evaluate_every = o.save_period = 1'000'000;
}

// The whole length is that of the record; other epochs are whole ones.
void keep_length(RunOptions& o, std::int64_t epochs, double last_epoch) {
  if (o.epochs != epochs && o.last_epoch == last_epoch) o.last_epoch = 1;
}

// (x - 128) / 64 is exact in bfloat16 for every pixel x; CIFAR-10's own mean and deviation are not.
void scale_pixels(RunOptions& o) {
  if (o.precision == "f32" || !o.rgb_mean.empty() || !o.rgb_std.empty()) return;
  o.rgb_mean = "128";
  o.rgb_std = "64";
  o.notes.push_back("--recipe " + o.recipe + ": with --precision " + o.precision +
                    " the pixels are scaled by 128 and 64, which is exact");
}

// SGD with Nesterov momentum and lookahead.
void sgd(RunOptions& o) {
  o.mom = 0.85;
  o.early_epochs = 3;
  o.ema_decay = std::pow(0.95, 5);
  o.ema_schedule = "lookahead";
  o.ema_every = 5;
}

// Rises from a fifth of the peak in `warmup` of `steps` steps.
void triangle(RunOptions& o, double warmup, double steps, double end) {
  if (!o.warmup_epochs && !detail::has_own_rise(o))
    o.warmup_epochs = warmup / steps * (static_cast<double>(o.epochs) - 1 + o.last_epoch);
  if (!o.warmup_lr) {
    o.warmup_lr = 0.2 * *o.lr;
    o.derived.emplace_back("warmup-lr");
  }
  if (o.lr_end || o.lr_schedule != "linear") return;
  o.lr_end = end * *o.lr;
  o.derived.emplace_back("lr-end");
}

// KellerJordan/cifar10-airbench, legacy/airbench94.py. Its rate of 11.5 and decay of 0.0153 for 1024 images are for
// steps whose length does not depend on the momentum.
void airbench94(RunOptions& o) {
  common(o, "airbench94", 1024, 10, 0.9);
  sgd(o);
  o.lr_end.reset();
  o.wd = 0.0153 / 11.5;
}
void complete_airbench94(RunOptions& o) {
  keep_length(o, 10, 0.9);
  triangle(o, 109, 476, 0.07);
  scale_pixels(o);
}

// KellerJordan/cifar10-airbench, legacy/airbench96.py.
void airbench96(RunOptions& o) {
  common(o, "airbench96", 1024, 37, 1);
  sgd(o);
  o.wd = 0.012 / 9;
  o.pad_size = 4;
  o.cutout = 12;
}
void complete_airbench96(RunOptions& o) {
  triangle(o, 177, 1776, 0);
  scale_pixels(o);
}

// KellerJordan/cifar10-airbench, airbench96_faster.py. The file freezes the biases of the first layer in an epoch
// that never comes. Its rate and decay are for the sum of the losses of 512 chosen images.
void airbench96_faster(RunOptions& o) {
  airbench96(o);
  o.epochs = 45;
  o.wd = 2 * 0.012 / 9;
  o.early_parameters.clear();
  o.early_epochs = 0;
  o.hardest = 0.5;
  o.data_on_device = "no";
}
void complete_airbench96_faster(RunOptions& o) {
  triangle(o, 216, 2160, 0);
  scale_pixels(o);
}

// What both records with Muon have.
void muon(RunOptions& o) {
  o.optimizer = "muon";
  o.muon_steps = 3;
  o.muon_scale = "none";
  o.muon_normalize = true;
  o.muon_products = "bf16";
  o.warmup_epochs = 0;
  o.early_rate = "linear";
}

// The rate of the biases. That of the head is in the net.
void rest_rate(RunOptions& o, double for_a_sum, std::int64_t batch) {
  if (o.rest_lr) return;
  o.rest_lr = for_a_sum * static_cast<double>(o.global_batch_size);
  o.derived.emplace_back("rest-lr");
  if (o.global_batch_size != batch)
    o.notes.push_back("--recipe " + o.recipe + ": --rest-lr is " + detail::text_of(*o.rest_lr) + " in place of " +
                      detail::text_of(for_a_sum * static_cast<double>(batch)) + " (proportional to the batch)");
}

// KellerJordan/cifar10-airbench, airbench94_muon.py.
constexpr double airbench_bias_rate = 0.053;
void airbench94_muon(RunOptions& o) {
  common(o, "airbench94_muon", 2000, 8, 1);
  muon(o);
  o.mom = 0.6;
  o.rest_mom = 0.85;
  o.rest_wd = 2e-6 / airbench_bias_rate;
  o.wd = 0;
  o.early_epochs = 3;
}
void complete_airbench94_muon(RunOptions& o) {
  rest_rate(o, airbench_bias_rate, 2000);
  scale_pixels(o);
}

// hiverge/cifar10-speedrun, cifar10_speedrun.py of September 2025.
constexpr double hive_bias_rate = 0.0573, hive_decay = 1.0418e-6;
void hive94(RunOptions& o) {
  common(o, "hive94", 1536, 8, 0.59);
  muon(o);
  o.mom = 0.655;
  o.rest_mom = 0.825;
  o.rest_wd = hive_decay / hive_bias_rate;
  o.muon_coefficients = "3.4576,-4.7391,2.0843";
  o.muon_sparse_normalize = true;
  o.early_epochs = 0.19;
  o.label_smoothing = 0.09;
  o.whitening_images = 960;
  o.jitter_brightness = 0.1399;
  o.jitter_contrast = 0.1308;
  o.tta = 3;
}
void complete_hive94(RunOptions& o) {
  keep_length(o, 8, 0.59);
  rest_rate(o, hive_bias_rate, 1536);
  if (!o.wd) {
    o.wd = hive_decay * static_cast<double>(o.global_batch_size);
    o.derived.emplace_back("wd");
  }
  scale_pixels(o);
}

constexpr char all_differ[] =
    "a step that the rest of an epoch does not fill goes on with the next epoch, in place of being left out; bf16 in "
    "place of f16, with pixels scaled by 128 and 64";

}  // namespace

void add_cifar_recipes(std::vector<Recipe>& all) {
  const auto add = [&](Recipe r) {
    r.program = Program::train_cifar10;
    all.push_back(r);
  };
  constexpr double steps = 1 + 1 / 0.15;  // lengths of a step of Nesterov momentum 0.85, if the gradient stays the same
  add({.name = "airbench94",
       .source = "KellerJordan/cifar10-airbench, legacy/airbench94.py",
       .published = "94.01 % top-1",
       .epochs = 10,
       .apply = airbench94,
       .rate = 11.5 / steps,
       .batch = 1024,
       .rule = RateRule::linear,
       .complete = complete_airbench94,
       .differs = all_differ,
       .last_epoch = 0.9});
  add({.name = "airbench94-muon",
       .source = "KellerJordan/cifar10-airbench, airbench94_muon.py",
       .published = "94.01 % top-1",
       .epochs = 8,
       .apply = airbench94_muon,
       .rate = 0.24,
       .batch = 2000,
       .complete = complete_airbench94_muon,
       .differs = "bf16 in place of f16, with pixels scaled by 128 and 64; the head's first weights have the expected "
                  "deviation of 1, not exactly"});
  add({.name = "airbench96",
       .source = "KellerJordan/cifar10-airbench, legacy/airbench96.py",
       .published = "96.03 % top-1",
       .epochs = 37,
       .apply = airbench96,
       .rate = 9 / steps,
       .batch = 1024,
       .rule = RateRule::linear,
       .complete = complete_airbench96,
       .differs = all_differ});
  add({.name = "airbench96-faster",
       .source = "KellerJordan/cifar10-airbench, airbench96_faster.py",
       .published = "96.00 % top-1",
       .epochs = 45,
       .apply = airbench96_faster,
       .rate = 9 / steps / 2,
       .batch = 1024,
       .rule = RateRule::linear,
       .complete = complete_airbench96_faster,
       .differs = "bf16 in place of f16, with pixels scaled by 128 and 64; one process, which cannot resume"});
  add({.name = "hive94",
       .source = "hiverge/cifar10-speedrun, cifar10_speedrun.py",
       .published = "94.01 % top-1",
       .epochs = 8,
       .apply = hive94,
       .rate = 0.205,
       .batch = 1536,
       .complete = complete_hive94,
       .differs =
           "a step that the rest of an epoch does not fill goes on with the next epoch; bf16 in place of f16, "
           "with pixels scaled by 128 and 64; jittered pixels are rounded to 256 levels; the head's first weights "
           "have the expected deviation of 1, not exactly",
       .last_epoch = 0.59});
}

}  // namespace tutti::trainer
