// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/io/checkpoint_load.hpp>
#include <tutti/io/checkpoint_manifest.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/json.hpp>
#include <tutti/io/safetensors_write.hpp>
#include <tutti/io/tensor_record.hpp>

namespace tutti::io {

// What a checkpoint holds. The records' bytes must stay as they are while save() runs.
struct CheckpointData {
  std::int64_t step = 0;
  Json counters = Json::object();
  Json options = Json::object();
  std::vector<TensorRecord> model;
  std::vector<TensorRecord> optimizer;
};

struct BestCheckpoint {
  std::int64_t step = 0;
  double metric = 0;
};

// The checkpoints of one run, RUN/checkpoints/step-%09d/ with model.safetensors, optimizer.safetensors, manifest.json
// and COMPLETE. A checkpoint appears under its name only when it is whole and on the disk; older ones go only after it
// has been read back. One writer at a time; readers at any time.
class CheckpointStore {
 public:
  // Keeps the newest `keep` checkpoints and the one marked best. Touches no file.
  explicit CheckpointStore(const Path& run_folder, int keep = 2) : folder_(run_folder / "checkpoints"), keep_(keep) {
    if (keep < 1) fail<UsageError>("CheckpointStore", "at least 1 checkpoint to keep", std::to_string(keep));
  }

  [[nodiscard]] const Path& folder() const noexcept { return folder_; }

  // Writes a checkpoint and returns its folder. An error leaves the earlier checkpoints as they are and nothing of this
  // one; only where the message says that the new checkpoint is valid did it fail to remove old ones.
  Path save(const CheckpointData& data) {
    if (data.step < 0) fail<UsageError>("checkpoint", "a step of 0 or more", std::to_string(data.step));
    make_folder();
    remove_stale_asides(folder_);
    Path target = folder_ / step_name(data.step);
    const Path aside = aside_path(target);
    try {
      write_aside(aside, data);
      set_aside_same_step(target);
      rename_path(aside, target);
    } catch (...) {
      discard(aside);
      restore_same_step(target);
      throw;
    }
    try {
      fsync_directory(folder_);
      for (const char* name : {"model.safetensors", "optimizer.safetensors", "manifest.json", "COMPLETE"})
        forget_cached(target / name);
      (void)load_checkpoint(target);
    } catch (...) {
      discard(target);
      restore_same_step(target);
      throw;
    }
    try {
      prune(data.step);
    } catch (const FileError& e) {
      throw FileError("the new checkpoint " + target.string() + " is valid, but older ones stay: " + e.what(),
                      e.error_number());
    } catch (const DataError& e) {
      throw DataError("the new checkpoint " + target.string() + " is valid, but older ones stay: " + e.what());
    }
    return target;
  }

  // Every checkpoint's folder, valid or not, newest first.
  [[nodiscard]] std::vector<Path> list() const {
    std::vector<Path> out;
    for (const auto& found : scan()) out.push_back(found.path);
    return out;
  }

  // DataError names the file and what is wrong with it.
  [[nodiscard]] LoadedCheckpoint load(const Path& folder) const {
    LoadedCheckpoint c = load_checkpoint(folder);
    const auto found = parse_step(folder.filename().string());
    if (found && found->step != c.step())
      fail<DataError>("checkpoint " + folder.string(), "step " + std::to_string(found->step) + " as its name says",
                      std::to_string(c.step()));
    return c;
  }

  // The newest checkpoint that is whole; nothing if there is none. Each one that was passed over adds a line to
  // `complaints`.
  [[nodiscard]] std::optional<LoadedCheckpoint> load_newest_valid(
      std::vector<std::string>* complaints = nullptr) const {
    for (const auto& found : scan()) {
      try {
        return load(found.path);
      } catch (const DataError& e) {
        if (complaints != nullptr) complaints->push_back(found.path.string() + " is not used: " + e.what());
      }
    }
    return std::nullopt;
  }

  // Keeps the checkpoint of that step until another one is marked. UsageError if there is none of that step, or if the
  // metric is not finite.
  void mark_best(std::int64_t step, double metric) {
    if (!find(step)) fail<UsageError>("checkpoint best", "a step that was saved", std::to_string(step));
    atomic_write_file(folder_ / "best.json", write_json(Json::object({{"step", step}, {"metric", metric}})) + "\n");
  }
  // Nothing if none was marked; DataError if best.json is damaged.
  [[nodiscard]] std::optional<BestCheckpoint> best() const {
    const Path path = folder_ / "best.json";
    if (!path_exists(path)) return std::nullopt;
    const Json json = parse_json(read_text_file(path, 4096), path.string());
    return BestCheckpoint{json.at("step", path.string()).as_integer(path.string()),
                          json.at("metric", path.string()).as_double(path.string())};
  }
  [[nodiscard]] std::optional<double> best_metric() const {
    const auto marked = best();
    return marked ? std::optional(marked->metric) : std::nullopt;
  }
  // Nothing if none was marked; DataError if it is not whole.
  [[nodiscard]] std::optional<LoadedCheckpoint> load_best() const {
    const auto marked = best();
    if (!marked) return std::nullopt;
    const auto path = find(marked->step);
    if (!path)
      fail<DataError>("checkpoint " + (folder_ / "best.json").string(),
                      "a checkpoint of step " + std::to_string(marked->step), "none");
    return load(*path);
  }

  // Removes the checkpoints after `step`: for a run that goes on from an older one, whose later ones would otherwise
  // pass for the newest.
  void discard_newer_than(std::int64_t step) {
    for (const auto& found : scan())
      if (found.step > step) remove(found.path);
  }

 private:
  struct Found {
    std::int64_t step = 0;
    bool replaced = false;
    Path path;
  };

  [[nodiscard]] static std::string step_name(std::int64_t step) {
    const std::string digits = std::to_string(step);
    return "step-" + std::string(digits.size() < 9 ? 9 - digits.size() : 0, '0') + digits;
  }

  // "step-000000007", or "step-000000007.old" while another one of the same step takes its place.
  [[nodiscard]] static std::optional<Found> parse_step(std::string_view name) {
    Found found;
    found.replaced = name.ends_with(".old");
    const auto bare = found.replaced ? name.substr(0, name.size() - 4) : name;
    if (!bare.starts_with("step-")) return std::nullopt;
    const auto parsed = std::from_chars(bare.data() + 5, bare.data() + bare.size(), found.step);
    if (parsed.ec != std::errc() || found.step < 0 || step_name(found.step) != bare) return std::nullopt;
    return found;
  }

  // Newest first; of one step, the one that takes the other's place first.
  [[nodiscard]] std::vector<Found> scan() const {
    std::vector<Found> out;
    if (!path_exists(folder_)) return out;
    std::error_code error;
    for (std::filesystem::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
      auto found = parse_step(it->path().filename().string());
      if (!found) continue;
      found->path = it->path();
      out.push_back(std::move(*found));
    }
    if (error) fail_file("list the folder", folder_, error.value());
    std::sort(out.begin(), out.end(), [](const Found& a, const Found& b) {
      return a.step != b.step ? a.step > b.step : a.replaced < b.replaced;
    });
    return out;
  }

  [[nodiscard]] std::optional<Path> find(std::int64_t step) const {
    for (auto& found : scan())
      if (found.step == step) return found.path;
    return std::nullopt;
  }

  void make_folder() const {
    if (path_exists(folder_)) return;
    make_directories(folder_);
    fsync_directory(folder_of(folder_));
    fsync_directory(folder_of(folder_of(folder_)));
  }

  static void write_aside(const Path& aside, const CheckpointData& data) {
    if (::mkdir(aside.c_str(), 0777) != 0) fail_file("make the folder", aside, errno);
    CheckpointManifest manifest{data.step, data.counters, data.options, {}, {}};
    manifest.model = write_tensors(aside / "model.safetensors", data.model);
    manifest.optimizer = write_tensors(aside / "optimizer.safetensors", data.optimizer);
    const std::string text = write_manifest(manifest);
    if (text.size() > detail::most_manifest_bytes)
      fail<UsageError>("checkpoint", "counters and options of at most 16 MiB", std::to_string(text.size()) + " bytes");
    write_synced(aside / "manifest.json", text);
    write_synced(aside / "COMPLETE", crc_text(crc32c(text)) + "\n");
    fsync_directory(aside);
  }
  static CheckpointFile write_tensors(const Path& path, std::span<const TensorRecord> records) {
    FileWriter writer(path);
    write_safetensors(writer, records);
    writer.sync();
    writer.close();
    return {writer.size(), writer.crc()};
  }
  static void write_synced(const Path& path, std::string_view text) {
    FileWriter writer(path);
    writer.write(text);
    writer.sync();
    writer.close();
  }

  [[nodiscard]] static Path old_of(const Path& target) { return Path(target.string() + ".old"); }

  // A folder that is not empty cannot be renamed over. The earlier checkpoint of the same step stays readable as .old
  // until the new one has been read back.
  void set_aside_same_step(const Path& target) const {
    if (!path_exists(target)) return;
    const Path old = old_of(target);
    if (path_exists(old)) {
      if (!is_valid(target)) {
        remove(target);
        return;
      }
      remove(old);
    }
    rename_path(target, old);
  }
  static void restore_same_step(const Path& target) noexcept {
    // Fails where there is no .old, or where the target still stands: both are right.
    (void)::rename(old_of(target).c_str(), target.c_str());
  }
  [[nodiscard]] static bool is_valid(const Path& folder) {
    try {
      (void)load_checkpoint(folder);
      return true;
    } catch (const DataError&) {
      return false;
    }
  }

  // The name goes first, so that half a checkpoint is never seen under it.
  static void remove(const Path& path) {
    const Path aside = aside_path(path);
    rename_path(path, aside);
    remove_tree(aside);
  }
  // On the way of another error, which is the one to report.
  static void discard(const Path& path) noexcept {
    try {
      if (path_exists(path)) remove(path);
    } catch (const std::exception&) {
      // What stays is no valid checkpoint, or goes with the next save.
    }
  }

  void prune(std::int64_t saved) const {
    const auto marked = best();
    int kept = 1;
    for (const auto& found : scan()) {
      if (found.replaced && path_exists(folder_ / step_name(found.step))) {
        remove(found.path);
        continue;
      }
      if (found.step == saved || (marked && marked->step == found.step)) continue;
      if (++kept > keep_) remove(found.path);
    }
  }

  Path folder_;
  int keep_;
};

}  // namespace tutti::io
