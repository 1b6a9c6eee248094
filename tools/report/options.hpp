// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace tutti::report_tool {

struct Options {
  std::string text{};  // what --help or --version prints; empty: none was given
  std::vector<std::string> runs{};
  std::string out = "report.html", title{};
};

// Throws UsageError.
[[nodiscard]] Options parse_options(const std::vector<std::string>& words);

}  // namespace tutti::report_tool
