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

// Finds the folder of a run, and the checkpoint from which a run begins.
namespace tutti::trainer {

using Warn = std::function<void(const std::string&)>;

namespace detail {

// Returns the run to which a checkpoint RUN/checkpoints/step-N belongs.
inline io::Path run_of(const io::Path& checkpoint) {
  return std::filesystem::absolute(checkpoint).lexically_normal().parent_path().parent_path();
}

// Removes a run's files for --clear-log, and no other files.
void clear_run(const io::Path& folder);

}  // namespace detail

// Returns the folder of log.jsonl and the event files.
[[nodiscard]] inline io::Path log_folder(const RunOptions& o) { return o.log_dir.empty() ? o.run_dir : o.log_dir; }

// Returns the command that continues an interrupted run.
[[nodiscard]] std::string how_to_resume(const RunOptions& o);

// Decides which folder the run writes to, but does not make it yet. The path of --resume may be a run's folder, which
// means its newest checkpoint. Throws UsageError if the folder is in use and the run should not resume.
void settle_run_folder(RunOptions& o);

// Returns the checkpoint that the options name, or nullopt for a new run. Reports each damaged checkpoint that is
// skipped to `warn`. Throws DataError if there is no usable checkpoint.
std::optional<io::LoadedCheckpoint> find_checkpoint(const RunOptions& o, const Warn& warn);

// Reports the options that affect the training and differ from those of the checkpoint. An evaluation compares only
// those of the net and its images.
void compare_options(const io::Json& before, const RunOptions& o, const Warn& warn);

// Requires the options that decide which images were held out for validation, and the number of the others, to be those
// of the checkpoint: otherwise the run would be evaluated on images that it was trained on. Throws UsageError.
void require_same_split(const io::Json& before, const RunOptions& o, std::int64_t not_held_out);

// Removes the checkpoints after `step`: the run continues from `step`.
void give_up_later_checkpoints(const RunOptions& o, std::int64_t step, const Warn& warn);

}  // namespace tutti::trainer
