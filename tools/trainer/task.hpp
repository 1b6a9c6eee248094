// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/interchange/image_preparation.hpp>
#include <tutti/io/file.hpp>
#include <tutti/train/report.hpp>

#include "tools/trainer/options.hpp"

namespace tutti::trainer {

struct Images {
  AnyDataset train;
  std::optional<AnyDataset> test;
  // Whether each epoch ends with an evaluation if the options do not say otherwise.
  bool evaluate_each_epoch = false;
  bool held_out = false;  // the test images were taken from those for training, by --validation-share and --seed
  std::uint32_t not_held_out = 0;    // if held_out: number of the other images, with which the run trains
  std::vector<std::string> notes{};  // shown to the user at the start
  std::vector<LaterImages> later{};  // training images of other sizes
  // Returns the number of training images of each class; empty: they must be read.
  std::function<std::vector<std::int64_t>()> class_counts{};
  // Returns the file of a test image; empty: the images have no files of their own.
  std::function<std::string(std::int64_t index)> test_file{};
  std::optional<AnyDataset> plain{};  // training images as they are stored, for a layer that whitens them
};

// The data of a run.
struct Loaded {
  Schema seen{};  // schema of the net's input
  Images images;
};

// What listeners print at the start of a run.
struct RunStart {
  std::string versions;  // versions of tutti, the backend and the machine
  std::int64_t images = 0;
  int ranks = 1;
  std::int64_t save_every_steps = 0, summary_every = 0;
};

// A checkpoint that was evaluated.
struct EvaluatedCheckpoint {
  std::int64_t step = 0;
  std::int64_t epoch = 0;  // epoch of its last step, from 1; 0: the weights belong to no run
  io::Path path;
  bool averaged = false;  // its averaged weights were evaluated
};

// The parts of a program that differ: its images and its output.
struct Task {
  // schema: returns the schema of the net's input. images: returns the images.
  std::function<Schema(const RunOptions&)> schema;
  std::function<Images(const RunOptions&, const Schema&)> images;
  // Returns the preparation of test images that are in files.
  std::function<interchange::ImagePreparation(const RunOptions&, const Schema& seen)> preparation;
  // Returns additional listeners of rank 0. l2: returns the decay term of the loss.
  std::function<std::vector<std::unique_ptr<FitListener>>(const RunOptions&, const RunStart&,
                                                          const std::function<double()>& l2)>
      listeners;
  // Functions with which rank 0 prints evaluations of checkpoints. If they are empty, rank 0 prints them in the common
  // form. `evaluating` is called before the first evaluation, with the number of images.
  std::function<void(const RunOptions&, std::int64_t images)> evaluating;
  std::function<void(const EvaluationReport&, const EvaluatedCheckpoint&)> evaluated;
  std::function<void()> evaluation_done;
  // Called on rank 0 when a run has done its last step and saved it.
  std::function<void(const RunOptions&)> finished;
  bool shows_progress = true;  // shows the common progress display, even if RunOptions::as_table is set
};

}  // namespace tutti::trainer
