// SPDX-License-Identifier: MIT
#include "tools/report/options.hpp"

#include <string>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/command_line/command_line.hpp"
#include "tools/command_line/values.hpp"

namespace tutti::report_tool {

namespace {

const command_line::Form form{
    .program = "tutti-report",
    .title =
        R"(Makes one HTML page of what runs have written. The page needs no network and no other file. It shows overlaid curves,
throughput, the shares of the time, changes of members, the confusion matrix and the worst-classified images
of the last evaluation (with tutti-train: of the best one), options and their differences. A run may still be training.)",
    .usage = "tutti-report [OPTIONS] RUN...",
    .notes = R"(RUN: the folder of a run (--run-dir) or of its log (--log-dir), or a file log.jsonl.
Exit codes: 0, 1 internal error, 2 usage, 3 a folder that is not a run's, or a run that could not be read completely (the
page and the standard error name what is missing).)",
    .expected = "--out, --title or a run",
    .single_dash = false};

}  // namespace

Options parse_options(const std::vector<std::string>& words) {
  using command_line::text;
  Options o;
  const auto line =
      command_line::read(words,
                         {{"--out", "FILE", text(o.out),
                           "file to which the page is written; - is the standard output  [report.html]", "Options"},
                          {"--title", "TEXT", text(o.title), "title of the page  [the runs' names]", "Options"}},
                         form);
  o.text = line.text;
  if (!o.text.empty()) return o;
  o.runs = words_of(line, "a run's folder");
  if (o.runs.empty()) fail<UsageError>("command line", "a run's folder", "none", "--help says more");
  return o;
}

}  // namespace tutti::report_tool
