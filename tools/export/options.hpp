// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "tools/predict/model_options.hpp"

namespace tutti::export_tool {

struct Options {
  std::string text{};  // text to print for --help or --version; otherwise empty
  predict_tool::ModelOptions model{};
  std::string out{}, input = "normalized", output = "logits";
};

// Throws UsageError.
[[nodiscard]] Options parse_options(const std::vector<std::string>& words);

}  // namespace tutti::export_tool
