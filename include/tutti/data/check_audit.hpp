// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
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

struct AuditResult {                   // The result of checking an audit.
  std::int64_t lines = 0;              // of the epoch, without cancelled ones
  std::int64_t missing = 0;            // samples that were never seen
  std::int64_t repeated = 0;           // extra visits of samples seen before
  std::vector<std::int64_t> examples;  // up to 8 of the missing or repeated samples
  std::string where;                   // two lines that have the same sample, if there are any
  [[nodiscard]] bool exactly_once() const noexcept { return missing == 0 && repeated == 0; }
};

namespace detail {

// A line that its own file does not cancel.
struct AuditLine {
  std::int64_t epoch = 0, step = 0, rank = 0, generation = 0;
  bool closes = false;
  std::size_t file = 0;
  std::int64_t number = 0, at = 0;  // in the file: of the line, and of the byte at which its indices begin
};
struct AuditGeneration {
  std::int64_t ranks = 0, step = 0;
  std::string where{};
};

}  // namespace detail

// All audit files of a run together; its data set has `size` samples. Reads the files once completely, and again for
// each epoch that is asked for, so that memory holds no samples. Throws DataError, with file and line, for a line that
// is malformed, incomplete or has a sample outside [0, size), a generation that was never started, or a step or rank
// that the generation does not have.
class Audit {
 public:
  Audit(std::span<const std::string> paths, std::int64_t size) : paths_(paths.begin(), paths.end()), size_(size) {
    for (file_ = 0; file_ < paths.size(); ++file_) read();
    for (const Line& l : lines_)
      if (l.closes) closed_.emplace(l.generation, l.step);
    for (const Line& l : lines_) check(l);
    std::erase_if(lines_, [&](const Line& l) { return !counts(l); });
    std::stable_sort(lines_.begin(), lines_.end(), [](const Line& a, const Line& b) { return a.epoch < b.epoch; });
  }
  // Returns the epochs that occur in the files.
  [[nodiscard]] std::set<std::int64_t> epochs() const {
    std::set<std::int64_t> found;
    for (const Line& l : lines_) found.insert(l.epoch);
    return found;
  }
  // Returns whether the files show every sample exactly once in this epoch.
  [[nodiscard]] AuditResult result(std::int64_t epoch) const {
    const auto before = [](const Line& l, std::int64_t e) { return l.epoch < e; };
    const auto begin = std::lower_bound(lines_.begin(), lines_.end(), epoch, before);
    const auto end = std::lower_bound(begin, lines_.end(), epoch + 1, before);
    std::vector<const Line*> seen(static_cast<std::size_t>(size_));
    std::set<std::int64_t> again;
    AuditResult result;
    result.lines = end - begin;
    std::ifstream in;
    std::string text;
    for (auto l = begin; l != end; ++l) {
      if (l == begin || l->file != std::prev(l)->file) in = std::ifstream(paths_[l->file], std::ios::binary);
      if (!in.seekg(l->at) || !std::getline(in, text))
        fail<DataError>("audit", "an unchanged file during the check", "a changed file", where(*l));
      for (std::string_view rest = text; !rest.empty();) {
        (void)takes(rest, " ");
        const std::int64_t i = std::clamp<std::int64_t>(take(rest), 0, size_ - 1);
        const auto*& first = seen[static_cast<std::size_t>(i)];
        if (first == nullptr) {
          first = &*l;
          continue;
        }
        ++result.repeated;
        again.insert(i);
        if (result.where.empty())
          result.where = "sample " + std::to_string(i) + ": " + where(*first) + " and " + where(*l);
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

 private:
  using Line = detail::AuditLine;
  using Generation = detail::AuditGeneration;

  [[nodiscard]] std::string where(const Line& l) const { return paths_[l.file] + " line " + std::to_string(l.number); }
  static constexpr const char* form =
      "EPOCH STEP RANK: INDEX ..., EPOCH STEP RANK GENERATION: INDEX ..., either of them after 'closed', generation "
      "GENERATION "
      "RANKS EPOCH STEP or rollback EPOCH STEP";

  [[noreturn]] void bad(const char* expected) const {
    fail<DataError>("audit", expected, {"\"", printable(line_.substr(0, 60)), "\""},
                    {paths_[file_], " line ", number_});
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
    if (!in) fail<DataError>("audit", {"the file ", paths_[file_]}, "no such file");
    std::vector<Line> lines;
    at_ = 0;
    std::map<std::int64_t, Generation> begun;
    for (number_ = 1; std::getline(in, line_); ++number_, at_ += static_cast<std::int64_t>(line_.size()) + 1) {
      if (in.eof()) bad("a complete line");
      std::string_view rest = line_;
      if (takes(rest, "rollback ")) {
        const std::int64_t e = take(rest, " "), s = take(rest);
        if (!rest.empty()) bad("rollback EPOCH STEP");
        std::erase_if(lines, [&](const Line& l) { return l.epoch > e || (l.epoch == e && l.step >= s); });
        // After a rollback to step 1 earlier generations do not count.
        std::erase_if(begun, [&](const auto& g) { return g.second.step >= s || s <= 1; });
      } else if (takes(rest, "generation ")) {
        const std::int64_t g = take(rest, " "), ranks = take(rest, " ");
        (void)take(rest, " ");
        const std::int64_t s = take(rest);
        if (!rest.empty() || g == 0 || ranks == 0) bad("generation GENERATION RANKS EPOCH STEP");
        if (!begun.try_emplace(g, Generation{ranks, s, here()}).second) bad("one beginning of each generation");
      } else {
        lines.push_back(part(rest));
      }
    }
    lines_.insert(lines_.end(), std::move_iterator(lines.begin()), std::move_iterator(lines.end()));
    for (const auto& [g, b] : begun) {
      const auto [at, fresh] = begun_.try_emplace(g, b);
      if (!fresh)
        fail<DataError>("audit", "one beginning of each generation",
                        {"generation ", g, " at ", at->second.where, " and at ", b.where});
    }
  }
  [[nodiscard]] std::string here() const { return paths_[file_] + " line " + std::to_string(number_); }
  [[nodiscard]] Line part(std::string_view rest) const {
    Line l;
    l.file = file_;
    l.number = number_;
    l.closes = takes(rest, "closed ");
    l.epoch = take(rest, " ");
    l.step = take(rest, " ");
    l.rank = take(rest);
    if (takes(rest, " ")) l.generation = take(rest);
    if (!takes(rest, ":") || (l.closes && l.generation == 0)) bad(form);
    l.at = at_ + static_cast<std::int64_t>(line_.size() - rest.size());
    while (!rest.empty()) {
      if (!takes(rest, " ")) bad("a space before each index");
      if (take(rest) >= size_) bad("indices of samples in the data set");
    }
    return l;
  }

  void check(const Line& l) const {
    if (l.generation == 0) return;
    const auto g = begun_.find(l.generation);
    const auto complain = [&](const std::string& expected, const std::string& got) {
      fail<DataError>("audit", expected, got, where(l));
    };
    if (g == begun_.end())
      return complain("a generation that its coordinator has begun", "generation " + std::to_string(l.generation));
    if (l.closes ? l.step != g->second.step : l.step <= g->second.step)
      complain(std::string(l.closes ? "step " : "a step after step ") + std::to_string(g->second.step) +
                   ", at which generation " + std::to_string(l.generation) + " began",
               std::to_string(l.step));
    if (!l.closes && l.rank >= g->second.ranks)
      complain("one of " + std::to_string(g->second.ranks) + " ranks", "rank " + std::to_string(l.rank));
  }
  // Returns whether no later generation cancels the line.
  [[nodiscard]] bool counts(const Line& l) const {
    for (auto g = begun_.upper_bound(l.generation); g != begun_.end(); ++g)
      if (g->second.step < l.step || (g->second.step == l.step && closed_.contains({g->first, l.step}))) return false;
    return true;
  }

  std::vector<std::string> paths_;
  std::int64_t size_;
  std::size_t file_ = 0;              // index of the file that is being read
  std::int64_t number_ = 0, at_ = 0;  // number of its current line, and offset of the line's first byte
  std::string line_;
  std::vector<Line> lines_;
  std::map<std::int64_t, Generation> begun_;
  std::set<std::pair<std::int64_t, std::int64_t>> closed_;  // generation and step
};

// Returns whether the audit files together show every sample of [0, size) exactly once in `epoch`. Throws like Audit.
[[nodiscard]] inline AuditResult check_audit(std::span<const std::string> paths, std::int64_t epoch,
                                             std::int64_t size) {
  return Audit(paths, size).result(epoch);
}

}  // namespace tutti
