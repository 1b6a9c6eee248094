// SPDX-License-Identifier: MIT
#include "tools/trainer/option_table.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

namespace tutti::trainer {

namespace {

// The options that --help lists; --help-all lists all. Options have the names of the program's table.
constexpr std::string_view common[] = {
    // Data
    "data", "data-dir", "dataset", "data-train", "data-val", "image-shape", "image-size", "augmentation", "random-crop",
    "random-mirror", "num-examples", "num-classes", "data-nthreads", "num-parallel-calls", "benchmark", "synthetic",
    // Model
    "preset", "recipe", "network", "model", "depth", "pretrained", "freeze", "label-smoothing",
    // Optimisation
    "batch-size", "global-batch-size", "accumulate", "optimizer", "lr", "mom", "wd", "wdecay", "ema-decay",
    // Schedule
    "epochs", "num-epochs", "max-steps", "num-batches", "lr-schedule", "lr-decay-mode", "lr-step-epochs",
    "lr-decay-steps", "lr-factor", "lr-decay-factor", "warmup-epochs", "patience", "find-lr",
    // Run
    "run-dir", "log-dir", "resume", "keep", "save-period", "save-frequency", "save-checkpoints-steps", "evaluate-every",
    "eval-only", "eval", "disp-batches", "display-every", "precision", "backend", "threads", "seed", "trace", "dry-run",
    // Distribution
    "strategy", "gpus", "logical-ranks", "shares", "elastic-batch"};

}  // namespace

std::span<const NeutralOption> neutral_options(Program p) {
  if (p == Program::train_cifar10) return cifar10_neutral_options;
  return {};
}

bool is_common(std::string_view option) {
  return std::find(std::begin(common), std::end(common), option) != std::end(common);
}

}  // namespace tutti::trainer
