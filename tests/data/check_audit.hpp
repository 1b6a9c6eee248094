// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

// Reads the audits of a run (data/audit.hpp).
namespace tutti {

struct AuditResult {
  std::int64_t lines = 0;              // of the epoch, those taken back not counted
  std::int64_t missing = 0;            // samples that were never seen
  std::int64_t repeated = 0;           // extra visits of samples seen before
  std::vector<std::int64_t> examples;  // up to 8 of the missing or repeated samples
  [[nodiscard]] bool exactly_once() const noexcept { return missing == 0 && repeated == 0; }
};

// Tells whether the audit files together show every sample of [0, size) exactly once in `epoch`. Throws DataError, with
// file and line, for a line that is malformed, cut off, or names a sample outside [0, size).
[[nodiscard]] inline AuditResult check_audit(std::span<const std::string> paths, std::int64_t epoch,
                                             std::int64_t size) {
  std::vector<std::uint32_t> seen(static_cast<std::size_t>(size));
  AuditResult result;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    if (!in) fail<DataError>("audit", "the file " + path, "none");
    std::multimap<std::int64_t, std::vector<std::int64_t>> steps;
    std::string line;
    for (std::int64_t number = 1; std::getline(in, line); ++number) {
      const auto bad = [&](const char* expected) {
        fail<DataError>("audit", expected, "\"" + line.substr(0, 60) + "\"", path + " line " + std::to_string(number));
      };
      if (in.eof()) bad("a line that ends");
      std::string_view rest = line;
      const auto take = [&](std::string_view after) {
        std::int64_t n = 0;
        const auto [p, e] = std::from_chars(rest.data(), rest.data() + rest.size(), n);
        if (e != std::errc{} || n < 0) bad("EPOCH STEP RANK: INDEX ... or rollback EPOCH STEP");
        rest.remove_prefix(static_cast<std::size_t>(p - rest.data()));
        if (!rest.starts_with(after)) bad("EPOCH STEP RANK: INDEX ... or rollback EPOCH STEP");
        rest.remove_prefix(after.size());
        return n;
      };
      constexpr std::string_view rollback = "rollback ";
      const bool back = rest.starts_with(rollback);
      if (back) rest.remove_prefix(rollback.size());
      const std::int64_t e = take(" ");
      if (back) {
        const std::int64_t s = take("");
        if (!rest.empty()) bad("rollback EPOCH STEP");
        if (e < epoch)
          steps.clear();
        else if (e == epoch)
          steps.erase(steps.lower_bound(s), steps.end());
        continue;
      }
      const std::int64_t s = take(" ");
      take(":");
      std::vector<std::int64_t> indices;
      while (!rest.empty()) {
        if (rest.front() != ' ') bad("indices with a space before each");
        rest.remove_prefix(1);
        indices.push_back(take(""));
        if (indices.back() >= size) bad("samples that the data set has");
      }
      if (e == epoch) steps.emplace(s, std::move(indices));
    }
    result.lines += static_cast<std::int64_t>(steps.size());
    for (const auto& [s, indices] : steps)
      for (const auto i : indices) ++seen[static_cast<std::size_t>(i)];
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] == 1) continue;
    if (seen[i] == 0)
      ++result.missing;
    else
      result.repeated += seen[i] - 1;
    if (result.examples.size() < 8) result.examples.push_back(static_cast<std::int64_t>(i));
  }
  return result;
}

}  // namespace tutti
