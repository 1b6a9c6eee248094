// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/train/report.hpp>

#include "tools/trainer/options.hpp"

// What rank 0 leaves to the processes that go on with its run, where the processes of a job are started anew whenever
// its members change.
namespace tutti::trainer {

[[nodiscard]] inline std::int64_t wall_clock_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

// As text for LaunchEnvironment::keep: "STEP ENDED RUN_DIR".
[[nodiscard]] inline std::string kept_text(const KeptRun& k, const std::string& run_dir) {
  return std::to_string(k.step) + " " + std::to_string(k.ended_ns) + " " + run_dir;
}

// Reads it into the options: they go on with that run, from its last checkpoint if it has one yet, else as they began.
void take_kept_run(RunOptions& o, const std::string& text);

// Whether the checkpoint that the run has come to is here at all.
void require_kept_checkpoint(const RunOptions& o);

// Writes it, whenever there is news.
class RunKeeper final : public FitListener {
 public:
  explicit RunKeeper(const RunOptions& o);
  void saved(const std::string& checkpoint) override;
  // Nothing is lost: others may go on at once.
  void ended();

 private:
  void write() const {
    if (!file_.empty()) io::atomic_write_file(file_, kept_text(now_, run_dir_));
  }
  std::string file_, run_dir_;
  KeptRun now_;
};

}  // namespace tutti::trainer
