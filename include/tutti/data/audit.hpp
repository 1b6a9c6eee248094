// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <tutti/io/append_file.hpp>
#include <tutti/io/file_error.hpp>

// The audit of a run: the samples that every committed step consumed. One line for each step and rank,
//   EPOCH STEP RANK: INDEX INDEX ...
// and, when a run returned to an earlier state,
//   rollback EPOCH STEP
// which cancels the lines above it with that (epoch, step) or a later one. Every rank writes a file of its own.
//
// If the job's members change, lines also hold the generation,
//   EPOCH STEP RANK GENERATION: INDEX INDEX ...
// and the coordinator of each generation starts it with
//   generation GENERATION RANKS EPOCH STEP
//   closed EPOCH STEP RANK GENERATION: INDEX INDEX ...
// STEP is the last complete step of the earlier generations: what they have written or still write about later steps
// does not count. The lines "closed", one for each rank that had a part of that step, replace the lines of these ranks,
// because some ranks may have ended before they wrote theirs. check_audit.hpp reads all this.
namespace tutti {

// A rank's part of a step, to be written to its audit.
struct AuditPart {
  std::int64_t epoch = 0, step = 0;
  int rank = 0;
  std::int64_t generation = 0;  // 0: members do not change
  std::span<const std::int64_t> indices{};
};

// Appends to an audit file; a line is one write. The constructor removes half a line that a killed process left at the
// end. Throws io::FileError.
class AuditLog {
 public:
  explicit AuditLog(io::Path path) : file_(std::move(path), io::AppendFile::Mode::continue_file) {
    file_.cut_after_last('\n');
  }

  // Call this when the step has been committed.
  void step(const AuditPart& part) {
    line_.clear();
    add(part);
    flush();
  }
  void step(std::int64_t epoch, std::int64_t step, int rank, std::span<const std::int64_t> indices) {
    this->step({epoch, step, rank, 0, indices});
  }

  // Starts a generation of `ranks` ranks after a step of an epoch. Call closed() after it for each part of that step
  // that is written again, and then write(), which writes everything at once.
  void begin_generation(std::int64_t generation, int ranks, std::int64_t epoch, std::int64_t step) {
    line_ = "generation ";
    number(generation, ' ');
    number(ranks, ' ');
    number(epoch, ' ');
    number(step, '\n');
  }
  void closed(const AuditPart& part) {
    line_ += "closed ";
    add(part);
    line_ += '\n';
  }
  void write() { file_.append(line_); }

  // Returns whether neither this run nor an earlier one has written to the file.
  [[nodiscard]] bool empty() const { return file_.empty(); }

  // Cancels the lines above with this (epoch, step) or a later one: the run repeats these steps. Must be called on
  // every file of the run, including those of ranks that have left, before any rank continues. Coordinator does this.
  void rollback(std::int64_t epoch, std::int64_t step) {
    line_ = "rollback ";
    number(epoch, ' ');
    number(step);
    flush();
  }

 private:
  void number(std::int64_t n, char after = 0) {
    char digits[24];
    line_.append(digits, std::to_chars(digits, digits + sizeof digits, n).ptr);
    if (after != 0) line_ += after;
  }
  void add(const AuditPart& part) {
    number(part.epoch, ' ');
    number(part.step, ' ');
    number(part.rank);
    if (part.generation > 0) {
      line_ += ' ';
      number(part.generation);
    }
    line_ += ':';
    for (const auto i : part.indices) {
      line_ += ' ';
      number(i);
    }
  }
  void flush() {
    line_ += '\n';
    write();
  }

  io::AppendFile file_;
  std::string line_;
};

// Returns a rank's file in the run's folder.
[[nodiscard]] inline io::Path audit_file(const io::Path& folder, int rank) {
  return folder / ("audit-rank" + std::to_string(rank) + ".txt");
}

// Returns the newest generation that a file of rank 0 has the beginning of. Returns 0 if there is none, or no file.
[[nodiscard]] inline std::int64_t latest_audited_generation(const io::Path& file) {
  constexpr std::string_view begin = "generation ";
  std::int64_t latest = 0;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(begin)) continue;
    std::int64_t number = 0;
    std::from_chars(line.data() + begin.size(), line.data() + line.size(), number);
    latest = std::max(latest, number);
  }
  return latest;
}

// Rolls back the files of ranks that a run of `ranks` ranks no longer has: other ranks will repeat the later steps in
// these files.
inline void roll_back_gone_ranks(const io::Path& folder, int ranks, std::int64_t epoch, std::int64_t step) {
  constexpr std::string_view begin = "audit-rank", end = ".txt";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(end)) continue;
    const auto digits = std::string_view(name).substr(begin.size(), name.size() - begin.size() - end.size());
    int rank = 0;
    const auto [p, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc{} || p != digits.data() + digits.size() || rank < ranks) continue;
    AuditLog(entry.path()).rollback(epoch, step);
  }
}

}  // namespace tutti
