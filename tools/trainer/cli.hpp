// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "tools/trainer/options.hpp"

namespace tutti::trainer {

// Returns the options from the command line, its --config file and the environment, in this order of precedence, and
// the defaults. The options are not checked yet. Returns nullopt after printing the text of --help, --version or
// --print-config. Throws UsageError that names the option.
std::optional<RunOptions> parse_command_line(int argc, char** argv, Program program = Program::train_cifar10);

// Returns the options as a file for --config.
std::string config_text(const RunOptions& options);

}  // namespace tutti::trainer
