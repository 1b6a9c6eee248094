// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace tutti::report_tool {

struct Options {
  std::string text{};  // text to print for --help or --version; otherwise empty
  std::vector<std::string> runs{};
  std::string out = "report.html", title{};
};

// Throws UsageError.
[[nodiscard]] Options parse_options(const std::vector<std::string>& words);

}  // namespace tutti::report_tool
