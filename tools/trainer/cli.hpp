// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "tools/trainer/options.hpp"

namespace tutti::trainer {

// The options that the command line, its --config file and the environment give, in this order of precedence, over the
// defaults; not checked yet. Nothing if it was --help, --version or --print-config, whose text has been printed then.
// Throws UsageError that names the option.
std::optional<RunOptions> parse_command_line(int argc, char** argv, Program program = Program::train_cifar10);

// The options as a file for --config.
std::string config_text(const RunOptions& options);

}  // namespace tutti::trainer
