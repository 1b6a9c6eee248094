// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace tutti::generate_trainer {

struct Options {
  std::string text{};  // text to print for --help or --version; otherwise empty
  std::string workers_file, script_dir, log_dir = "/tmp/";
  int worker_count = 0, gpus = 0;
  std::vector<std::string> command;  // the program and all its arguments
};

// Parses the command line. Throws UsageError that names the option.
[[nodiscard]] Options parse_options(const std::vector<std::string>& words);

}  // namespace tutti::generate_trainer
