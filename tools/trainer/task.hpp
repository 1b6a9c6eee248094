// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/interchange/image_preparation.hpp>
#include <tutti/io/file.hpp>
#include <tutti/train/report.hpp>

#include "tools/trainer/options.hpp"

namespace tutti::trainer {

struct Images {
  AnyDataset train;
  std::optional<AnyDataset> test;
  // Each epoch ends with an evaluation, unless the options say otherwise.
  bool evaluate_each_epoch = false;
  std::vector<std::string> notes{};  // that the user sees at the start
};

// What a run is about.
struct Loaded {
  Schema seen{};  // by the net
  Images images;
};

// What a listener prints at the start of a run.
struct RunStart {
  std::string versions;  // of tutti, the backend and the machine
  std::int64_t images = 0;
  int ranks = 1;
  std::int64_t save_every_steps = 0, summary_every = 0;
};

// A checkpoint that was evaluated.
struct EvaluatedCheckpoint {
  std::int64_t step = 0;
  std::int64_t epoch = 0;  // that its last step belongs to, from 1; 0: of no run
  io::Path path;
  bool averaged = false;  // its averaged weights
};

// What is a program's own: its images and what it prints.
struct Task {
  // What the net sees, and the images themselves.
  std::function<Schema(const RunOptions&)> schema;
  std::function<Images(const RunOptions&, const Schema&)> images;
  // How to prepare test images that are files.
  std::function<interchange::ImagePreparation(const RunOptions&, const Schema& seen)> preparation;
  // Further listeners of rank 0; `l2` is the decay term of the loss.
  std::function<std::vector<std::unique_ptr<FitListener>>(const RunOptions&, const RunStart&,
                                                          const std::function<double()>& l2)>
      listeners;
  // Rank 0 prints what checkpoints come to; the common form where there is none. `evaluating`: before the first, of so
  // many images.
  std::function<void(const RunOptions&, std::int64_t images)> evaluating;
  std::function<void(const EvaluationReport&, const EvaluatedCheckpoint&)> evaluated;
  std::function<void()> evaluation_done;
  bool shows_progress = true;  // in the common form, also if RunOptions::as_table
};

}  // namespace tutti::trainer
