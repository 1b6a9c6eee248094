// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <tutti/io/checkpoint/checkpoint_load.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/json/json.hpp>

#include "tools/trainer/options.hpp"

// The folder of a run, and where a run begins.
namespace tutti::trainer {

using Warn = std::function<void(const std::string&)>;

namespace detail {

// The run that a checkpoint RUN/checkpoints/step-N belongs to.
inline io::Path run_of(const io::Path& checkpoint) {
  return std::filesystem::absolute(checkpoint).lexically_normal().parent_path().parent_path();
}

// Removes a run's files for --clear-log, and no other files.
void clear_run(const io::Path& folder);

}  // namespace detail

// Returns the folder of log.jsonl and the event files.
[[nodiscard]] inline io::Path log_folder(const RunOptions& o) { return o.log_dir.empty() ? o.run_dir : o.log_dir; }

// Which command continues a run that was interrupted.
[[nodiscard]] std::string how_to_resume(const RunOptions& o);

// Settles which folder the run writes to; makes nothing yet. A path given to --resume may be a run: then its newest
// checkpoint counts. Throws UsageError for a folder that is in use and not to be resumed.
void settle_run_folder(RunOptions& o);

// The checkpoint that the options ask for; nothing for a new run. Each one that is passed over is named to `warn`.
// Throws DataError where there is none to be had.
std::optional<io::LoadedCheckpoint> find_checkpoint(const RunOptions& o, const Warn& warn);

// Names the options that shape the training and differ from those the checkpoint was made with. An evaluation needs the
// net and its images alone.
void compare_options(const io::Json& before, const RunOptions& o, const Warn& warn);

// A run that goes on from an older step of its own gives up what it did after it.
void give_up_later_checkpoints(const RunOptions& o, std::int64_t step, const Warn& warn);

}  // namespace tutti::trainer
