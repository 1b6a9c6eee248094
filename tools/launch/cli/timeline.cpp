// SPDX-License-Identifier: MIT
#include "tools/launch/cli/timeline.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/trace/trace_merge.hpp>

namespace tutti::launch {

namespace {

// Returns the file of the last --trace among the command's arguments, or an empty text.
[[nodiscard]] std::string timeline_of_command(const std::vector<std::string>& command) {
  std::string file;
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string_view word = command[i];
    if (word.starts_with("--trace=")) file = word.substr(8);
    if (word == "--trace" && i + 1 < command.size()) file = command[i + 1];
  }
  return file;
}

}  // namespace

std::string merge_timelines(const std::vector<std::string>& command, const std::string& job) {
  const std::string file = timeline_of_command(command);
  try {
    if (file.empty() || io::detail::trace_parts_of(file).empty()) return "";
    const auto merged = io::merge_traces(file, job);
    return merged ? "timeline of " + std::to_string(merged->processes) + " processes in " + file : "";
  } catch (const Error&) {
    return "";  // another program's option, or a folder on another host
  }
}

}  // namespace tutti::launch
