// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/json/json.hpp>

// Merges the timelines of a job's processes into one.
namespace tutti::io {

// Returns the file of one process next to the timeline `file` of its job: out.json and "rank3" make out.rank3.json.
[[nodiscard]] inline Path trace_part(const Path& file, const std::string& process) {
  return folder_of(file) / (file.stem().string() + "." + process + file.extension().string());
}

struct MergedTrace {  // The result of a merge.
  int processes = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> complaints{};  // about files, or parts of files, that are not in the result
};

namespace detail {

// The events of one process: lines "{...}," of a trace, without the comma.
struct TracePart {
  Path file;
  std::string job, boot;
  std::int64_t process = 0, ahead = 0;
  std::vector<Json> events{};
};

inline constexpr std::size_t most_trace_bytes = std::size_t{1} << 30;
inline constexpr std::int64_t most_ahead = std::int64_t{1} << 61;

// Returns the events of a trace file, or no value if it is not a trace or belongs to another job.
[[nodiscard]] inline std::optional<TracePart> read_trace(const Path& file, const std::string& job, MergedTrace& about) {
  const std::string text = read_text_file(file, most_trace_bytes);
  TracePart part;
  part.file = file;
  std::size_t damaged = 0;
  bool named = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    at = end + 1;
    if (line.ends_with(',')) line.remove_suffix(1);
    if (line.empty() || line == "[" || line == "]") continue;
    try {
      Json event = parse_json(line);
      if (!named) {
        const Json& args = event.at("args");
        part.job = args.at("job").as_string();
        part.boot = args.at("boot").as_string();
        part.ahead = args.at("clock_ahead").as_integer();
        if (part.ahead < -most_ahead || part.ahead > most_ahead) return std::nullopt;
        part.process = event.at("pid").as_integer();
        if (part.job != job) return std::nullopt;
        named = true;
      }
      (void)event.at("ph").as_string();
      for (const char* const time : {"ts", "dur"})
        if (const Json* t = event.find(time)) (void)t->as_double();
      part.events.push_back(std::move(event));
    } catch (const DataError&) {
      if (!named) return std::nullopt;
      ++damaged;
    }
  }
  if (!named) return std::nullopt;
  // The last line of a killed process may be incomplete.
  if (damaged > 1)
    about.complaints.push_back(std::to_string(damaged) + " events of " + file.string() +
                               " are damaged and were left out");
  return part;
}

// The times at which the members of a host entered and left sums of all ranks. No rank leaves a sum before all ranks
// have entered it.
struct SumTimes {
  double entered = -std::numeric_limits<double>::infinity(), left = std::numeric_limits<double>::infinity();
};
[[nodiscard]] inline std::map<std::string, SumTimes> sums_of(const std::vector<const TracePart*>& parts) {
  std::map<std::string, SumTimes> all;
  for (const TracePart* const p : parts) {
    std::map<std::string, int> seen;  // the sums of a repeated step are not comparable
    for (const Json& e : p->events) {
      const Json *name = e.find("name"), *dur = e.find("dur"), *ts = e.find("ts");
      if (name == nullptr || dur == nullptr || ts == nullptr || !name->is_string() ||
          !name->as_string().starts_with("all_reduce step "))
        continue;
      SumTimes& s = all[name->as_string()];
      s.entered = std::max(s.entered, ts->as_double());
      s.left = std::min(s.left, ts->as_double() + dur->as_double());
      if (++seen[name->as_string()] > 1) s.left = -std::numeric_limits<double>::infinity();
    }
  }
  return all;
}

// Returns how many microseconds to add to the times of `theirs`: the difference of the wall clocks, limited to the
// range that the common sums allow.
[[nodiscard]] inline double clock_shift(const std::vector<const TracePart*>& ours,
                                        const std::vector<const TracePart*>& theirs) {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  const auto a = sums_of(ours), b = sums_of(theirs);
  for (const auto& [name, our] : a) {
    const auto found = b.find(name);
    if (found == b.end() || our.entered > our.left || found->second.entered > found->second.left) continue;
    low = std::max(low, our.entered - found->second.left);
    high = std::min(high, our.left - found->second.entered);
  }
  const auto by_day = static_cast<double>(theirs.front()->ahead - ours.front()->ahead);
  return low <= high ? std::clamp(by_day, low, high) : by_day;
}

[[nodiscard]] inline std::vector<Path> trace_parts_of(const Path& file) {
  std::vector<Path> found;
  const std::string stem = file.stem().string() + ".", extension = file.extension().string();
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder_of(file), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(stem) || !name.ends_with(extension) || name.size() <= stem.size() + extension.size())
      continue;
    const std::string_view process(name.data() + stem.size(), name.size() - stem.size() - extension.size());
    if (process.starts_with("rank") || process.starts_with("server")) found.push_back(it->path());
  }
  if (error) fail_file("list the folder", folder_of(file), error.value());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace detail

// Merges the traces of a job's processes into `file` and removes them. Has no effect if there is no trace, or if one of
// the processes still writes: the process that ends last merges. Events of the same job that `file` already contains
// stay. Times are those of the host of the lowest process. Times of other hosts are shifted so that common operations
// of the ranks match. Throws FileError.
inline std::optional<MergedTrace> merge_traces(const Path& file, const std::string& job) {
  using namespace detail;
  // Only one process at a time merges. If two end at the same time, the second one sees that the first has ended.
  const Descriptor turn = Descriptor::open(folder_of(file), O_RDONLY | O_DIRECTORY, "open the folder");
  while (::flock(turn.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  MergedTrace about;
  std::vector<TracePart> parts;
  std::vector<Path> merged = trace_parts_of(file);
  for (const Path& p : merged) {
    const Descriptor part = Descriptor::open(p, O_RDONLY, "open");
    if (::flock(part.get(), LOCK_SH | LOCK_NB) != 0) return std::nullopt;
  }
  std::vector<Path> taken;
  for (const Path& p : merged)
    if (auto part = read_trace(p, job, about)) {
      parts.push_back(std::move(*part));
      taken.push_back(p);
    }
  if (parts.empty()) return std::nullopt;
  if (!job.empty() && path_exists(file))
    if (auto before = read_trace(file, job, about)) parts.push_back(std::move(*before));
  std::stable_sort(parts.begin(), parts.end(),
                   [](const TracePart& a, const TracePart& b) { return a.process < b.process; });
  std::map<std::string, std::vector<const TracePart*>> hosts;
  for (const TracePart& p : parts) hosts[p.boot].push_back(&p);
  const std::string& first = parts.front().boot;
  std::map<std::string, double> shifts;
  for (const auto& [boot, of_host] : hosts)
    if (boot != first) shifts[boot] = clock_shift(hosts[first], of_host);
  std::set<std::int64_t> processes;
  detail::replace_file(file, false, [&](FileWriter& out) {
    out.write(std::string_view("[\n"));
    const Json* last = nullptr;
    for (TracePart& p : parts) {
      const auto shift = shifts.find(p.boot);
      for (Json& e : p.events) {
        if (const Json* ts = e.find("ts"); ts != nullptr && shift != shifts.end())
          e.set("ts", ts->as_double() + shift->second);
        if (const Json* pid = e.find("pid"); pid != nullptr && pid->is_integer()) processes.insert(pid->as_integer());
        if (last != nullptr) out.write(write_json(*last) + ",\n");
        last = &e;
      }
    }
    if (last != nullptr) out.write(write_json(*last) + "\n]\n");
    about.bytes = out.size();
  });
  about.processes = static_cast<int>(processes.size());
  for (const Path& p : taken) remove_tree(p);
  return about;
}

}  // namespace tutti::io
