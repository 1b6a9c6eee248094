// SPDX-License-Identifier: MIT
#include "tools/report/options.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::report_tool {

Options parse_options(const std::vector<std::string>& words) {
  Options o;
  bool only_runs = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (only_runs || !word.starts_with("-")) {
      if (word.empty()) fail<UsageError>("command line", "a run's folder", "an empty word");
      o.runs.push_back(word);
      continue;
    }
    if (word == "--") {
      only_runs = true;
      continue;
    }
    if (word == "--help" || word == "-h" || word == "--version") {
      (word == "--version" ? o.version : o.help) = true;
      return o;
    }
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (name != "--out" && name != "--title")
      fail<UsageError>("command line", "--out, --title or a run", printable(word), "--help lists all options");
    if (equals == std::string::npos && i + 1 == words.size()) fail<UsageError>(name, "a value", "none");
    std::string value = equals == std::string::npos ? words[++i] : word.substr(equals + 1);
    if (value.empty()) fail<UsageError>(name, "a value", "an empty one");
    (name == "--out" ? o.out : o.title) = std::move(value);
  }
  if (o.runs.empty()) fail<UsageError>("command line", "a run's folder", "none", "--help says more");
  return o;
}

}  // namespace tutti::report_tool
