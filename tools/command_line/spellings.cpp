// SPDX-License-Identifier: MIT
#include "tools/command_line/spellings.hpp"

#include <string_view>
#include <vector>

namespace tutti::command_line {

namespace {

// Programs; a spelling may apply to several of them.
constexpr unsigned cifar10 = 1, imagenet = 2, trainers = cifar10 | imagenet, launch = 4, data = 8;

struct Spelling {
  unsigned programs;
  std::string_view option, other;
};

// The names come from the scripts of MXNet and GluonCV (num-layers, lr-mode, last-gamma, save-frequency, rec-train), of
// TensorFlow (train-dir, save-secs), of the Horovod trainer (data-dir, leta, wdecay, lr-decay-mode, display-every), of
// timm and torchvision (aa, reprob, remode, recount, aug-repeats, mixup-alpha, mixup-prob,
// train-interpolation, val-resize-size), and of the tools that resize ImageNet's TFRecord files (subset-name,
// start-offset, num-preprocess-threads).
constexpr Spelling spellings[] = {
    {cifar10, "data", "data-dir"},
    {imagenet, "data-dir", "data"},
    {imagenet, "data-train", "rec-train"},
    {imagenet, "data-train-idx", "rec-train-idx"},
    {imagenet, "data-val", "rec-val"},
    {imagenet, "data-val-idx", "rec-val-idx"},
    {cifar10, "centre-epochs", "center-epochs"},
    {cifar10, "data-nthreads", "num-data-workers"},
    {imagenet, "num-parallel-calls", "data-nthreads"},
    {imagenet, "num-parallel-calls", "num-data-workers"},
    {cifar10, "benchmark", "synthetic"},
    {imagenet, "synthetic", "benchmark"},
    {cifar10, "depth", "num-layers"},
    {cifar10, "zero-gamma", "last-gamma"},
    {imagenet, "adv-bn-init", "zero-gamma"},
    {imagenet, "adv-bn-init", "last-gamma"},
    {trainers, "auto-augment", "aa"},
    {trainers, "random-erase", "reprob"},
    {trainers, "erase-mode", "remode"},
    {trainers, "erase-count", "recount"},
    {trainers, "repeated-aug", "aug-repeats"},
    {trainers, "mixup", "mixup-alpha"},
    {trainers, "cutmix", "cutmix-alpha"},
    {trainers, "mix-probability", "mixup-prob"},
    {trainers, "mix-switch", "mixup-switch-prob"},
    {imagenet, "interpolation", "train-interpolation"},
    {imagenet, "eval-resize", "val-resize-size"},
    {trainers, "mom", "momentum"},
    {cifar10, "wd", "wdecay"},
    {cifar10, "wd", "weight-decay"},
    {imagenet, "wdecay", "wd"},
    {imagenet, "wdecay", "weight-decay"},
    {cifar10, "eta", "leta"},
    {imagenet, "leta", "eta"},
    {cifar10, "epochs", "num-epochs"},
    {imagenet, "num-epochs", "epochs"},
    {cifar10, "lr-schedule", "lr-mode"},
    {cifar10, "lr-schedule", "lr-decay-mode"},
    {imagenet, "lr-decay-mode", "lr-schedule"},
    {imagenet, "lr-decay-mode", "lr-mode"},
    {cifar10, "lr-step-epochs", "lr-decay-epoch"},
    {imagenet, "lr-decay-steps", "lr-step-epochs"},
    {imagenet, "lr-decay-steps", "lr-decay-epoch"},
    {cifar10, "lr-factor", "lr-decay"},
    {imagenet, "lr-decay-factor", "lr-factor"},
    {imagenet, "lr-decay-factor", "lr-decay"},
    {trainers, "poly-power", "lr-poly-power"},
    {cifar10, "run-dir", "train-dir"},
    {imagenet, "log-dir", "run-dir"},
    {imagenet, "log-dir", "train-dir"},
    {imagenet, "log-dir", "save-dir"},
    {cifar10, "save-period", "save-frequency"},
    {imagenet, "save-frequency", "save-period"},
    {trainers, "save-seconds", "save-secs"},
    {trainers, "save-seconds", "save-checkpoint-secs"},
    {imagenet, "save-checkpoints-steps", "save-steps"},
    {cifar10, "disp-batches", "log-interval"},
    {cifar10, "disp-batches", "display-every"},
    {imagenet, "display-every", "disp-batches"},
    {imagenet, "display-every", "log-interval"},
    {trainers, "precision", "dtype"},
    {cifar10, "eval-only", "eval"},
    {imagenet, "eval", "eval-only"},
    {trainers, "kv-store", "kvstore"},
    {launch, "hostfile", "hosts"},
    {data, "input", "input-dir"},
    {data, "output", "output-dir"},
    {data, "split", "subset-name"},
    {data, "resize", "size"},
    {data, "no-shuffle", "noshuffle"},
    {data, "first-shard", "start-offset"},
    {data, "threads", "num-preprocess-threads"},
};

unsigned bit_of(std::string_view program) {
  if (program == "train_cifar10") return cifar10;
  if (program == "train_imagenet" || program == "tutti-train") return imagenet;
  return program == "tutti-launch" ? launch : program == "tutti-data" ? data : 0;
}

}  // namespace

std::vector<std::string_view> spellings_of(std::string_view program, std::string_view option) {
  std::vector<std::string_view> found;
  for (const Spelling& s : spellings)
    if (s.option == option && (s.programs & bit_of(program)) != 0) found.push_back(s.other);
  return found;
}

}  // namespace tutti::command_line
