// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>

#include <tutti/engine/backend.hpp>
#include <tutti/io/json/json.hpp>

#include "tools/trainer/task.hpp"

// Evaluates the checkpoints of a run that trains in other processes, as cifar10_eval.py of TensorFlow's scripts does.
namespace tutti::trainer {

// Evaluates the newest checkpoint of --checkpoint-dir: each time there is a new one until a signal arrives, or only
// once, as the options say. make: checks the options and makes the backend. Returns the exit code. Throws DataError if
// it evaluates only once and there is no checkpoint.
int evaluate_concurrently(const RunOptions& said, const Task& task,
                          const std::function<std::unique_ptr<Backend>(RunOptions&)>& make);

}  // namespace tutti::trainer
