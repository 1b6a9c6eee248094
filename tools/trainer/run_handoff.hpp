// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/train/report.hpp>

#include "tools/trainer/options.hpp"

// The data that rank 0 leaves to the processes that continue its run, in jobs that restart their processes whenever the
// members change.
namespace tutti::trainer {

[[nodiscard]] inline std::int64_t wall_clock_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns the text for LaunchEnvironment::keep: "STEP ENDED RUN_DIR".
[[nodiscard]] inline std::string kept_text(const RunHandoff& k, const std::string& run_dir) {
  return std::to_string(k.step) + " " + std::to_string(k.ended_ns) + " " + run_dir;
}

// Reads the text into the options: the run continues from its last checkpoint if it has one, otherwise from its start.
void take_kept_run(RunOptions& o, const std::string& text);

// Throws DataError if the checkpoint that the run has reached is not in the run's folder.
void require_kept_checkpoint(const RunOptions& o);

// Writes the handoff after each checkpoint and at the end.
class RunHandoffWriter final : public FitListener {
 public:
  explicit RunHandoffWriter(const RunOptions& o);
  void saved(const std::string& checkpoint) override;
  // Call if the members change, after the processes have saved their state: their successors may continue at once.
  void members_change();

 private:
  void write() const {
    if (!file_.empty()) io::atomic_write_file(file_, kept_text(now_, run_dir_));
  }
  std::string file_, run_dir_;
  RunHandoff now_;
};

}  // namespace tutti::trainer
