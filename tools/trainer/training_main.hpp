// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/task.hpp"

namespace tutti::trainer {

// Runs a training program: reads its command line, trains `task` on the backend and with the strategy in the options,
// and returns the exit code. Compiled once for all programs and all backends.
int training_main(int argc, char** argv, Program program, const Task& task);

}  // namespace tutti::trainer
