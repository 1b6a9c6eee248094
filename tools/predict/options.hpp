// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/predict/model_options.hpp"

namespace tutti::predict_tool {

struct Options {
  std::string text{};  // text to print for --help or --version; otherwise empty
  bool json = false, verbose = false;
  ModelOptions model;
  std::vector<std::string> images;
  std::int64_t top = 5, batch = 32, threads = 0, data_threads = -1;
  std::string precision = "f32", backend = "auto", decoder = "auto";
};

// Throws UsageError.
[[nodiscard]] Options parse_options(const std::vector<std::string>& words);

}  // namespace tutti::predict_tool
