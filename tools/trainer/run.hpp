// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <tutti/graph/graph.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/train/detail/files/run_folder.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/train/signals.hpp>

#include "tools/trainer/step_lines.hpp"
#include "tools/trainer/task.hpp"
#include "tools/trainer/tensorboard.hpp"
#include "tools/trainer/value_trace.hpp"

// A run of a training program. program.cpp makes it, and trains or evaluates.
namespace tutti::trainer {

// A net, its trainer and its images.
class Run {
 public:
  // Prints a description of the net and the data.
  Run(Backend& backend, AnyStrategy& strategy, RunOptions& o, const Task& task, Loaded loaded);

  // Evaluates the checkpoints that the options name.
  void evaluate();

  // Trains; returns the exit code.
  int train();

 private:
  [[nodiscard]] bool here() const { return strategy_.rank() == 0; }
  [[nodiscard]] static bool told_to_stop() { return StopSignals::signal_number() == SIGINT; }
  // Returns true once the file of --spot-notice exists: the host will be taken away.
  [[nodiscard]] bool spot_notice();
  [[nodiscard]] std::int64_t tests() const { return images_.test ? images_.test->size() : 0; }
  [[nodiscard]] TrainerOptions options() const;

  void make_sources(const Schema& seen);

  // Rank 0 reads the checkpoint that the options name.
  void find();
  // Continues from it.
  void begin();

  // Returns the coordinator's logs. takes_over: another rank began them.
  std::vector<std::unique_ptr<FitListener>> open_logs(ProgressDisplay& progress, const FitOptions& how,
                                                      bool takes_over);

  // Returns what the log says at the end. If a run could not save its state, the log says that it failed, as its exit
  // code does.
  [[nodiscard]] static RunEnd run_end(const FitResult& result);

  int end(const FitResult& result, const std::optional<ViewsReport>& of_views);

  Backend& backend_;
  AnyStrategy& strategy_;
  RunOptions& o_;
  const Task& task_;
  Images images_;
  Graph model_;
  std::unique_ptr<ValueTrace> values_ = traced_values();
  Trainer trainer_;
  bool joins_;  // joins a running job
  bool noticed_ = false;
  std::chrono::steady_clock::time_point looked_{};
  std::unique_ptr<BatchSource> train_, test_;
  tutti::detail::RunFolderLock lock_;
  std::optional<Checkpoints> checkpoints_;
  TensorboardRun* tensorboard_ = nullptr;  // one of the coordinator's logs
  std::optional<io::LoadedCheckpoint> found_;
};

}  // namespace tutti::trainer
