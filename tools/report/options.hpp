// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

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
[[nodiscard]] Options parse_options(const std::vector<std::string>& words);

}  // namespace tutti::report_tool
