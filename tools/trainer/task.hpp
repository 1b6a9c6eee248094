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
  std::vector<std::string> notes{};  // shown to the user at the start
};

// The data of a run.
struct Loaded {
  Schema seen{};  // schema of the net's input
  Images images;
};

// What listeners print at the start of a run.
struct RunStart {
  std::string versions;  // of tutti, the backend and the machine
  std::int64_t images = 0;
  int ranks = 1;
  std::int64_t save_every_steps = 0, summary_every = 0;
};

// A checkpoint and its evaluation's facts.
struct EvaluatedCheckpoint {
  std::int64_t step = 0;
  std::int64_t epoch = 0;  // of its last step, from 1; 0: the weights belong to no run
  io::Path path;
  bool averaged = false;  // its averaged weights were evaluated
};

// The parts of a program that differ: its images and its output.
struct Task {
  // The schema of the net's input, and the images.
  std::function<Schema(const RunOptions&)> schema;
  std::function<Images(const RunOptions&, const Schema&)> images;
  // How to prepare test images that are files.
  std::function<interchange::ImagePreparation(const RunOptions&, const Schema& seen)> preparation;
  // Additional listeners of rank 0; `l2` is the decay term of the loss.
  std::function<std::vector<std::unique_ptr<FitListener>>(const RunOptions&, const RunStart&,
                                                          const std::function<double()>& l2)>
      listeners;
  // Functions with which rank 0 prints evaluations of checkpoints. If they are empty, it prints the common form.
  // `evaluating` is called before the first evaluation, with the number of images.
  std::function<void(const RunOptions&, std::int64_t images)> evaluating;
  std::function<void(const EvaluationReport&, const EvaluatedCheckpoint&)> evaluated;
  std::function<void()> evaluation_done;
  bool shows_progress = true;  // shows the common progress display, even if RunOptions::as_table
};

}  // namespace tutti::trainer
