// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/io/file.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/state.hpp>

#include "options.hpp"

namespace tutti::examples {

struct Images {
  AnyDataset train;
  std::optional<AnyDataset> test;
};

// What is a program's own: its images and what it prints.
struct Task {
  // What the net sees, and the images themselves.
  std::function<Schema(const RunOptions&)> schema;
  std::function<Images(const RunOptions&, const Schema&)> images;
  // Further listeners of rank 0; `l2` is the decay term of the loss.
  std::function<std::vector<std::unique_ptr<FitListener>>(const RunOptions&, const std::function<double()>& l2)>
      listeners;
  // Prints what a checkpoint came to; the common form where there is none.
  std::function<void(const RunOptions&, const EvaluationReport&, const Counters&, const io::Path&)> evaluated;
  bool shows_progress = true;  // in the common form
};

}  // namespace tutti::examples
