// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/fit.hpp>

namespace tutti::testing {

inline constexpr std::int64_t samples = 70, batch = 16;  // five steps per epoch; the last step has 6 rows

inline Graph net() {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 4}, {.relu = true});
  x = b.global_avg_pool("pool", x);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

struct Folder {
  std::filesystem::path path;
  Folder() {
    char name[] = "/tmp/tutti-fit-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

struct Recorder : FitListener {
  std::vector<StepReport> steps, summaries;
  std::vector<EpochReport> epochs;
  std::vector<std::string> warnings, paths;
  void step(const StepReport& r) override { steps.push_back(r); }
  void summary(const StepReport& r) override { summaries.push_back(r); }
  void epoch(const EpochReport& r) override { epochs.push_back(r); }
  void warning(const std::string& w) override { warnings.push_back(w); }
  void saved(const std::string& p) override { paths.push_back(p); }
};

// The objects of one training run. A new Run stands for a new process.
struct Run {
  Run() = default;
  explicit Run(EpochEnd end) : epoch_end(end) {}
  explicit Run(std::int64_t rows) : micro_batch(rows) {}
  std::int64_t micro_batch = 0;
  CpuBackend backend{CpuOptions{2}};
  Solo solo;
  Trainer trainer{backend, solo, net(), {.ema_decay = 0.9, .seed = 5, .micro_batch = micro_batch}};
  Synthetic train{{.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true}};
  Synthetic held{{.size = 33, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true, .first = 1000}};
  EpochEnd epoch_end = EpochEnd::short_step;
  Loader loader{train, {.placement = {batch, 0, 1, epoch_end}, .seed = 9, .threads = 2}};
  Loader test{held, {.placement = {10, 0, 1}, .shuffle = false, .one_pass = true, .threads = 1}};
  Recorder recorder;

  // audit: the folder of the audit; empty: no audit.
  FitResult go(Checkpoints* c, FitOptions o, const std::string& audit = {}) {
    o.global_batch = batch;
    o.report_every = 1;
    Coordinator coordinator(trainer, {.checkpoints = c, .listeners = {&recorder}, .audit = audit});
    return fit(trainer, loader, &test, coordinator, o);
  }
  std::vector<std::byte> bits() {
    trainer.commit();
    std::vector<std::byte> all;
    for (bool optimizer : {false, true})
      for (const auto& s : trainer.committed_tensors(optimizer)) all.insert(all.end(), s.bytes.begin(), s.bytes.end());
    return all;
  }
};

}  // namespace tutti::testing
