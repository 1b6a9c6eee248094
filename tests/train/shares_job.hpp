// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/check_audit.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/fit.hpp>

#include "comm/thread_ranks.hpp"
#include "fit_run.hpp"

namespace tutti::testing {

struct Heard : Recorder {
  std::vector<SharesReport> shared;
  void shares(const SharesReport& r) override { shared.push_back(r); }
};

struct SharedResults {
  std::vector<std::byte> bits;
  std::vector<double> numbers;  // of the epochs
  std::vector<SharesReport> shared;
  std::vector<float> weights;  // of the classifier
};

// A run of `fit_run.hpp` with shares that follow given times, in one process or in threads that are ranks.
struct SharesJob {
  std::function<double(int rank, std::int64_t step)> seconds;  // of one logical rank or row
  Shares shares = Shares::measured;
  int logical = 6;              // 0 with Shares::rows
  std::int64_t epochs = 12;     // of 5 steps
  std::int64_t stop_after = 0;  // the step after which the run is asked to stop; 0: none
  std::string run{}, audit{};   // folders; a run continues from its last checkpoint. Empty: none
  FitListener* log = nullptr;   // of rank 0
  Graph (*make_net)() = &net;
  std::int64_t micro_batch = 0;

  [[nodiscard]] SharedResults go(int world) const {
    SharedResults result;
    if (world == 1) {
      Solo solo;
      rank(solo, result);
    } else {
      run_ranks(world, [&](ThreadCommunicator& c) {
        AllReduce strategy(c);
        SharedResults other;
        rank(strategy, c.rank() == 0 ? result : other);
      });
    }
    return result;
  }

 private:
  template <class S>
  void rank(S& strategy, SharedResults& result) const {
    const int me = strategy.rank();
    CpuBackend backend{CpuOptions{1}};
    Trainer trainer(backend, strategy, make_net(),
                    {.ema_decay = 0.9, .seed = 5, .micro_batch = micro_batch, .logical_ranks = logical});
    const Synthetic images({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true});
    const Synthetic held(
        {.size = 33, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true, .first = 99});
    const Placement of{.global_batch = batch, .rank = me, .world = strategy.size(), .logical_ranks = logical};
    Loader train(images, {.placement = of, .seed = 9, .threads = 1 + me % 2});
    Loader test(held, {.placement = of, .shuffle = false, .one_pass = true, .threads = 1});
    Heard heard;
    CoordinatorOptions duties{.listeners = {&heard}, .audit = audit};
    if (log != nullptr) duties.listeners.push_back(log);
    std::optional<Checkpoints> checkpoints;
    if (!run.empty()) {
      duties.checkpoints = &checkpoints.emplace(run);
      (void)checkpoints->resume(trainer, [](const std::string& w) { FAIL(w); });
    }
    Coordinator coordinator(trainer, duties);
    FitOptions o{.epochs = epochs, .global_batch = batch};
    o.stop_requested = [&] { return trainer.counters().step + 1 == stop_after; };
    o.save_every = 0;
    o.save_best = false;
    o.save_last = !run.empty();
    o.shares = shares;
    o.share_seconds = [&](std::int64_t step, std::int64_t share) {
      return static_cast<double>(share) * seconds(me, step);
    };
    fit(trainer, train, &test, coordinator, o);
    if (me != 0) return;
    trainer.commit();
    for (const bool optimizer : {false, true})
      for (const auto& s : trainer.committed_tensors(optimizer))
        result.bits.insert(result.bits.end(), s.bytes.begin(), s.bytes.end());
    for (const EpochReport& e : heard.epochs)
      for (const double v : {e.train_loss, e.train_top1, e.test->loss, e.test->top1, e.test_ema->loss})
        result.numbers.push_back(v);
    result.shared = std::move(heard.shared);
    const Tensor<float> weights = trainer.parameter("fc.weight");
    result.weights.assign(weights.data(), weights.data() + weights.size());
  }
};

// Checks that the audits in `folder` have each sample once in each epoch.
inline void check_each_sample_once(const std::string& folder, std::int64_t epochs, std::size_t processes) {
  std::vector<std::string> files;
  for (const auto& e : std::filesystem::directory_iterator(folder)) files.push_back(e.path().string());
  CHECK(files.size() == processes);
  for (std::int64_t e = 0; e < epochs; ++e) {
    CAPTURE(e);
    const AuditResult r = check_audit(files, e, samples);
    CHECK(r.missing == 0);
    CHECK(r.repeated == 0);
  }
}

}  // namespace tutti::testing
