// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

// Reads the audits of a run (data/audit.hpp).
namespace tutti {

struct AuditResult {
  std::int64_t lines = 0;              // of the epoch, those taken back not counted
  std::int64_t missing = 0;            // samples that were never seen
  std::int64_t repeated = 0;           // extra visits of samples seen before
  std::vector<std::int64_t> examples;  // up to 8 of the missing or repeated samples
  std::string where;                   // two lines that have the same sample, where there are
  [[nodiscard]] bool exactly_once() const noexcept { return missing == 0 && repeated == 0; }
};

namespace detail {

// A line that counts as far as its own file tells.
struct AuditLine {
  std::int64_t epoch = 0, step = 0, rank = 0, generation = 0;
  bool closes = false;
  std::vector<std::int64_t> indices{};  // of the epoch that is asked for
  std::size_t file = 0;
  std::int64_t number = 0;
};
struct AuditGeneration {
  std::int64_t ranks = 0, step = 0;
  std::string where{};
};

class AuditReader {
 public:
  // epoch: whose indices are kept; -1: none.
  AuditReader(std::span<const std::string> paths, std::int64_t epoch, std::int64_t size)
      : paths_(paths), epoch_(epoch), size_(size) {
    for (file_ = 0; file_ < paths.size(); ++file_) read();
    for (const AuditLine& l : lines_)
      if (l.closes) closed_.emplace(l.generation, l.step);
    for (const AuditLine& l : lines_) check(l);
    std::erase_if(lines_, [&](const AuditLine& l) { return !counts(l); });
  }
  [[nodiscard]] const std::vector<AuditLine>& lines() const noexcept { return lines_; }
  [[nodiscard]] std::string where(const AuditLine& l) const {
    return paths_[l.file] + " line " + std::to_string(l.number);
  }

 private:
  static constexpr const char* form =
      "EPOCH STEP RANK: INDEX ..., EPOCH STEP RANK GENERATION: INDEX ..., closed and the same, generation GENERATION "
      "RANKS EPOCH STEP or rollback EPOCH STEP";

  [[noreturn]] void bad(const char* expected) const {
    fail<DataError>("audit", expected, "\"" + printable(line_.substr(0, 60)) + "\"",
                    paths_[file_] + " line " + std::to_string(number_));
  }
  std::int64_t take(std::string_view& rest) const {
    std::int64_t n = 0;
    const auto [p, e] = std::from_chars(rest.data(), rest.data() + rest.size(), n);
    if (e != std::errc{} || n < 0) bad(form);
    rest.remove_prefix(static_cast<std::size_t>(p - rest.data()));
    return n;
  }
  std::int64_t take(std::string_view& rest, std::string_view after) const {
    const std::int64_t n = take(rest);
    if (!rest.starts_with(after)) bad(form);
    rest.remove_prefix(after.size());
    return n;
  }
  [[nodiscard]] static bool takes(std::string_view& rest, std::string_view word) {
    const bool there = rest.starts_with(word);
    if (there) rest.remove_prefix(word.size());
    return there;
  }

  void read() {
    std::ifstream in(paths_[file_], std::ios::binary);
    if (!in) fail<DataError>("audit", "the file " + paths_[file_], "none");
    std::vector<AuditLine> lines;
    std::map<std::int64_t, AuditGeneration> begun;
    for (number_ = 1; std::getline(in, line_); ++number_) {
      if (in.eof()) bad("a line that ends");
      std::string_view rest = line_;
      if (takes(rest, "rollback ")) {
        const std::int64_t e = take(rest, " "), s = take(rest);
        if (!rest.empty()) bad("rollback EPOCH STEP");
        std::erase_if(lines, [&](const AuditLine& l) { return l.epoch > e || (l.epoch == e && l.step >= s); });
        // A run that begins anew has not had any.
        std::erase_if(begun, [&](const auto& g) { return g.second.step >= s || s <= 1; });
      } else if (takes(rest, "generation ")) {
        const std::int64_t g = take(rest, " "), ranks = take(rest, " ");
        (void)take(rest, " ");
        const std::int64_t s = take(rest);
        if (!rest.empty() || g == 0 || ranks == 0) bad("generation GENERATION RANKS EPOCH STEP");
        if (!begun.try_emplace(g, AuditGeneration{ranks, s, here()}).second) bad("a generation that begins once");
      } else {
        lines.push_back(part(rest));
      }
    }
    lines_.insert(lines_.end(), std::move_iterator(lines.begin()), std::move_iterator(lines.end()));
    for (const auto& [g, b] : begun) {
      const auto [at, fresh] = begun_.try_emplace(g, b);
      if (!fresh)
        fail<DataError>("audit", "a generation that begins once",
                        "generation " + std::to_string(g) + " at " + at->second.where + " and at " + b.where);
    }
  }
  [[nodiscard]] std::string here() const { return paths_[file_] + " line " + std::to_string(number_); }
  [[nodiscard]] AuditLine part(std::string_view rest) const {
    AuditLine l;
    l.file = file_;
    l.number = number_;
    l.closes = takes(rest, "closed ");
    l.epoch = take(rest, " ");
    l.step = take(rest, " ");
    l.rank = take(rest);
    if (takes(rest, " ")) l.generation = take(rest);
    if (!takes(rest, ":") || (l.closes && l.generation == 0)) bad(form);
    while (!rest.empty()) {
      if (!takes(rest, " ")) bad("indices with a space before each");
      const std::int64_t index = take(rest);
      if (index >= size_) bad("samples that the data set has");
      if (l.epoch == epoch_) l.indices.push_back(index);
    }
    return l;
  }

  void check(const AuditLine& l) const {
    if (l.generation == 0) return;
    const auto g = begun_.find(l.generation);
    const auto complain = [&](const std::string& expected, const std::string& got) {
      fail<DataError>("audit", expected, got, where(l));
    };
    if (g == begun_.end())
      return complain("a generation that its chief has begun", "generation " + std::to_string(l.generation));
    if (l.closes ? l.step != g->second.step : l.step <= g->second.step)
      complain("a step " + std::string(l.closes ? "that is " : "behind ") + std::to_string(g->second.step) +
                   ", where generation " + std::to_string(l.generation) + " began",
               std::to_string(l.step));
    if (!l.closes && l.rank >= g->second.ranks)
      complain("one of " + std::to_string(g->second.ranks) + " ranks", "rank " + std::to_string(l.rank));
  }
  // Whether no later generation says otherwise.
  [[nodiscard]] bool counts(const AuditLine& l) const {
    for (auto g = begun_.upper_bound(l.generation); g != begun_.end(); ++g)
      if (g->second.step < l.step || (g->second.step == l.step && closed_.contains({g->first, l.step}))) return false;
    return true;
  }

  std::span<const std::string> paths_;
  std::int64_t epoch_, size_;
  std::size_t file_ = 0;
  std::int64_t number_ = 0;
  std::string line_;
  std::vector<AuditLine> lines_;
  std::map<std::int64_t, AuditGeneration> begun_;
  std::set<std::pair<std::int64_t, std::int64_t>> closed_;  // generation and step
};

}  // namespace detail

// Tells whether the audit files together show every sample of [0, size) exactly once in `epoch`. Throws DataError, with
// file and line, for a line that is malformed, cut off, or names a sample outside [0, size), a generation that nobody
// has begun, or a step or rank that this generation does not have.
[[nodiscard]] inline AuditResult check_audit(std::span<const std::string> paths, std::int64_t epoch,
                                             std::int64_t size) {
  const detail::AuditReader all(paths, epoch, size);
  std::vector<const detail::AuditLine*> seen(static_cast<std::size_t>(size));
  std::set<std::int64_t> again;
  AuditResult result;
  for (const detail::AuditLine& l : all.lines()) {
    if (l.epoch != epoch) continue;
    ++result.lines;
    for (const std::int64_t i : l.indices) {
      const auto*& first = seen[static_cast<std::size_t>(i)];
      if (first == nullptr) {
        first = &l;
        continue;
      }
      ++result.repeated;
      again.insert(i);
      if (result.where.empty())
        result.where = "sample " + std::to_string(i) + ": " + all.where(*first) + " and " + all.where(l);
    }
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const bool none = seen[i] == nullptr;
    result.missing += none ? 1 : 0;
    if ((none || again.contains(static_cast<std::int64_t>(i))) && result.examples.size() < 8)
      result.examples.push_back(static_cast<std::int64_t>(i));
  }
  return result;
}

// The epochs of which the files tell.
[[nodiscard]] inline std::set<std::int64_t> audited_epochs(std::span<const std::string> paths) {
  const detail::AuditReader all(paths, -1, std::numeric_limits<std::int64_t>::max());
  std::set<std::int64_t> epochs;
  for (const detail::AuditLine& l : all.lines()) epochs.insert(l.epoch);
  return epochs;
}

}  // namespace tutti
