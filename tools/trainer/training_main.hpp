// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/task.hpp"

namespace tutti::trainer {

// A training program: reads its command line, trains `task` on the backend and with the strategy that it asks for, and
// returns the exit code. Compiled once for all programs and all backends.
int training_main(int argc, char** argv, Program program, const Task& task);

}  // namespace tutti::trainer
