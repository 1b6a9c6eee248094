// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::report_tool {

inline constexpr const char* help_text =
    R"(Makes one HTML page of what runs have written, which needs no network and no other file: curves laid over one
another, throughput, where the time went, changes of members, the confusion matrix and the worst-classified images of
the last evaluation, options and their differences. A run may still go on.

Usage: tutti-report [OPTIONS] RUN...

RUN: a run's folder (--run-dir), or that of its log (--log-dir), or a log.jsonl.
  --out FILE      the page; - is the standard output  [report.html]
  --title TEXT    of the page  [the runs' names]
Exit codes: 0, 1 internal error, 2 usage, 3 a folder that is no run, or a page that lacks what could not be read: the page
and the standard error name it.
)";

struct Options {
  bool help = false, version = false;
  std::vector<std::string> runs;
  std::string out = "report.html", title;
};

// Throws UsageError.
[[nodiscard]] inline Options parse_options(const std::vector<std::string>& words) {
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
