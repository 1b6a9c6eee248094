// SPDX-License-Identifier: MIT
#include "tools/trainer/spellings.hpp"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <vector>

namespace tutti::trainer {

namespace {

enum class Of : std::uint8_t { both, cifar10, imagenet };

struct Spelling {
  Of program;
  std::string_view option, other;
};

// From the scripts of MXNet and GluonCV (num-layers, lr-mode, last-gamma, save-frequency, rec-train), of TensorFlow
// (train-dir, save-secs) and of the Horovod trainer (data-dir, leta, wdecay, lr-decay-mode, display-every).
constexpr Spelling spellings[] = {
    {Of::cifar10, "data", "data-dir"},
    {Of::imagenet, "data-dir", "data"},
    {Of::imagenet, "data-train", "rec-train"},
    {Of::imagenet, "data-train-idx", "rec-train-idx"},
    {Of::imagenet, "data-val", "rec-val"},
    {Of::imagenet, "data-val-idx", "rec-val-idx"},
    {Of::cifar10, "centre-epochs", "center-epochs"},
    {Of::cifar10, "data-nthreads", "num-data-workers"},
    {Of::imagenet, "num-parallel-calls", "data-nthreads"},
    {Of::imagenet, "num-parallel-calls", "num-data-workers"},
    {Of::cifar10, "benchmark", "synthetic"},
    {Of::imagenet, "synthetic", "benchmark"},
    {Of::cifar10, "depth", "num-layers"},
    {Of::cifar10, "zero-gamma", "last-gamma"},
    {Of::imagenet, "adv-bn-init", "zero-gamma"},
    {Of::imagenet, "adv-bn-init", "last-gamma"},
    {Of::both, "mom", "momentum"},
    {Of::cifar10, "wd", "wdecay"},
    {Of::cifar10, "wd", "weight-decay"},
    {Of::imagenet, "wdecay", "wd"},
    {Of::imagenet, "wdecay", "weight-decay"},
    {Of::cifar10, "eta", "leta"},
    {Of::imagenet, "leta", "eta"},
    {Of::cifar10, "epochs", "num-epochs"},
    {Of::imagenet, "num-epochs", "epochs"},
    {Of::cifar10, "lr-schedule", "lr-mode"},
    {Of::cifar10, "lr-schedule", "lr-decay-mode"},
    {Of::imagenet, "lr-decay-mode", "lr-schedule"},
    {Of::imagenet, "lr-decay-mode", "lr-mode"},
    {Of::cifar10, "lr-step-epochs", "lr-decay-epoch"},
    {Of::imagenet, "lr-decay-steps", "lr-step-epochs"},
    {Of::imagenet, "lr-decay-steps", "lr-decay-epoch"},
    {Of::cifar10, "lr-factor", "lr-decay"},
    {Of::imagenet, "lr-decay-factor", "lr-factor"},
    {Of::imagenet, "lr-decay-factor", "lr-decay"},
    {Of::both, "poly-power", "lr-poly-power"},
    {Of::cifar10, "run-dir", "train-dir"},
    {Of::imagenet, "log-dir", "run-dir"},
    {Of::imagenet, "log-dir", "train-dir"},
    {Of::imagenet, "log-dir", "save-dir"},
    {Of::cifar10, "save-period", "save-frequency"},
    {Of::imagenet, "save-frequency", "save-period"},
    {Of::both, "save-seconds", "save-secs"},
    {Of::both, "save-seconds", "save-checkpoint-secs"},
    {Of::imagenet, "save-checkpoints-steps", "save-steps"},
    {Of::cifar10, "disp-batches", "log-interval"},
    {Of::cifar10, "disp-batches", "display-every"},
    {Of::imagenet, "display-every", "disp-batches"},
    {Of::imagenet, "display-every", "log-interval"},
    {Of::both, "precision", "dtype"},
    {Of::cifar10, "eval-only", "eval"},
    {Of::imagenet, "eval", "eval-only"},
    {Of::both, "kv-store", "kvstore"},
};

// What --help lists; --help-all lists all. An option is here by its name in the program's table.
constexpr std::string_view common[] = {
    // Data
    "data", "data-dir", "dataset", "data-train", "data-val", "image-shape", "image-size", "augmentation", "random-crop",
    "random-mirror", "num-examples", "num-classes", "data-nthreads", "num-parallel-calls", "benchmark", "synthetic",
    // Model
    "preset", "recipe", "network", "model", "depth", "pretrained", "label-smoothing",
    // Optimisation
    "batch-size", "global-batch-size", "accumulate", "optimizer", "lr", "mom", "wd", "wdecay", "ema-decay",
    // Schedule
    "epochs", "num-epochs", "max-steps", "num-batches", "lr-schedule", "lr-decay-mode", "lr-step-epochs",
    "lr-decay-steps", "lr-factor", "lr-decay-factor", "warmup-epochs",
    // Run
    "run-dir", "log-dir", "resume", "keep", "save-period", "save-frequency", "save-checkpoints-steps", "evaluate-every",
    "eval-only", "eval", "disp-batches", "display-every", "precision", "backend", "threads", "seed", "trace", "dry-run",
    // Distribution
    "strategy", "gpus", "elastic-batch"};

}  // namespace

std::vector<std::string_view> spellings_of(Program program, std::string_view option) {
  const Of other = program == Program::train_cifar10 ? Of::imagenet : Of::cifar10;
  std::vector<std::string_view> found;
  for (const Spelling& s : spellings)
    if (s.option == option && s.program != other) found.push_back(s.other);
  return found;
}

bool is_common(std::string_view option) {
  return std::find(std::begin(common), std::end(common), option) != std::end(common);
}

}  // namespace tutti::trainer
