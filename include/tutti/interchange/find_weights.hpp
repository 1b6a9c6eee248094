// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/file.hpp>

namespace tutti::interchange {

namespace detail {

[[nodiscard]] inline bool is_folder(const io::Path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

// Returns the checkpoint of a run that is marked as the best one, or its newest valid one without such a mark.
[[nodiscard]] inline io::Path checkpoint_of_run(const io::Path& run) {
  const io::CheckpointStore store(run);
  if (const auto best = store.load_best()) return best->path();
  std::vector<std::string> complaints;
  if (const auto newest = store.load_newest_valid(&complaints)) return newest->path();
  fail<DataError>({"model ", run.native()}, {"a complete checkpoint in ", store.folder().native()},
                  complaints.empty() ? "none" : complaints.front());
}

// Returns whether torch.save() wrote the file: a ZIP archive or, in the older form, a pickle. The first bytes of a
// safetensors file are the length of its header and may be the same, but its header begins with a brace.
[[nodiscard]] inline bool is_of_torch(const io::Path& path) {
  const io::MappedFile file(path);
  const auto bytes = file.bytes().first(std::min<std::size_t>(file.bytes().size(), 9));
  const std::string_view begin(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return (begin.starts_with("PK") || begin.starts_with("\x80")) && !begin.ends_with('{');
}

}  // namespace detail

// The location of weights: the safetensors file, and the folder of the checkpoint that contains it (empty if no
// checkpoint contains it).
struct WeightsPlace {
  io::Path file, checkpoint;
};

// Finds weights in `what`: a safetensors file; a checkpoint's folder, which is checked as a whole; or a run's folder,
// of which the best checkpoint is used, or the newest one without a mark. Throws DataError for other paths and for
// damaged files.
[[nodiscard]] inline WeightsPlace find_weights(const std::string& what) {
  const std::string where = "model " + what;
  io::Path path = what;
  while (path.has_parent_path() && path.filename().empty()) path = path.parent_path();  // removes a '/' at the end
  if (!io::path_exists(path)) fail<DataError>(where, "a checkpoint, a run or a safetensors file", "no such path");
  WeightsPlace found;
  if (detail::is_folder(path)) {
    if (!io::path_exists(path / "model.safetensors") && io::path_exists(path / "checkpoints"))
      path = detail::checkpoint_of_run(path);
    if (!io::path_exists(path / "model.safetensors"))
      fail<DataError>(where, "a checkpoint with model.safetensors, or a run with checkpoints",
                      "a folder without either");
    if (io::path_exists(path / "manifest.json")) found.checkpoint = io::load_checkpoint(path).path();
    path /= "model.safetensors";
  } else if (detail::is_of_torch(path)) {
    fail<DataError>(where, "a safetensors file", "a file of torch.save()",
                    "pytorch_weights.py FILE.pth FILE.safetensors converts it");
  }
  found.file = path;
  return found;
}

}  // namespace tutti::interchange
