// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>

#include <tutti/engine/backend.hpp>
#include <tutti/io/json/json.hpp>

#include "tools/trainer/task.hpp"

// An evaluation beside a run that goes on elsewhere, as cifar10_eval.py of TensorFlow's scripts.
namespace tutti::trainer {

// Evaluates the newest checkpoint of --checkpoint-dir whenever it is another one, until a signal comes, or once.
// make: checks the options and makes their backend. Returns the exit code. DataError where it is to be done once and
// there is none.
int evaluate_concurrently(const RunOptions& said, const Task& task,
                          const std::function<std::unique_ptr<Backend>(RunOptions&)>& make);

}  // namespace tutti::trainer
