// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/io/checkpoint/checkpoint_load.hpp>
#include <tutti/io/checkpoint/checkpoint_manifest.hpp>
#include <tutti/io/checkpoint/checkpoint_names.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/safetensors/safetensors_write.hpp>
#include <tutti/io/safetensors/tensor_record.hpp>

namespace tutti::io {

// The content of a checkpoint. The records' bytes must not change while save() runs.
struct CheckpointData {
  std::int64_t step = 0;
  std::int64_t generation = 0;  // of the membership, if the members of the job change
  Json counters = Json::object();
  Json options = Json::object();
  std::vector<TensorRecord> model;
  std::vector<TensorRecord> optimizer;
  SafetensorsMetadata metadata{};  // of model.safetensors
};

struct BestCheckpoint {  // The step of the best checkpoint and its metric.
  std::int64_t step = 0;
  double metric = 0;
};

// The checkpoints of one run: RUN/checkpoints/step-%09d/ with model.safetensors, optimizer.safetensors, manifest.json
// and COMPLETE.
// A checkpoint gets its name only when it is complete and on the disk. Older checkpoints are removed only after the new
// one has been read back. Only one writer may use a store at a time, but any number of readers.
// In a job with changing members, a writer may be paused, removed from the job, and continue later. Such a writer
// neither replaces nor removes checkpoints of later generations (io/checkpoint/checkpoint_names.hpp), and readers
// ignore what it writes.
class CheckpointStore {
 public:
  // Keeps the newest `keep` checkpoints and the one that is marked as the best. The constructor changes no file.
  // require_lease: called before every visible change; throws if this process may no longer write.
  explicit CheckpointStore(
      const Path& run_folder, int keep = 2, std::function<void()> require_lease = [] {})
      : folder_(run_folder / "checkpoints"), keep_(keep), require_lease_(std::move(require_lease)) {
    if (keep < 1) fail<UsageError>("CheckpointStore", "at least 1 checkpoint to keep", keep);
  }
  void set_require_lease(std::function<void()> f) { require_lease_ = std::move(f); }

  [[nodiscard]] const Path& folder() const noexcept { return folder_; }

  // Writes a checkpoint and returns its folder. If it throws, the earlier checkpoints are unchanged and the new one is
  // removed, with one exception: if the message says that the new checkpoint is valid, only the removal of old ones has
  // failed.
  Path save(const CheckpointData& data) {
    if (data.step < 0) fail<UsageError>("checkpoint", "a step of 0 or more", data.step);
    make_folder();
    remove_stale_asides(folder_);
    Path target = folder_ / CheckpointName{data.step, data.generation}.text();
    const Path aside = aside_path(target);
    try {
      write_aside(aside, target, data);
      require_lease_();
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
      prune(data);
    } catch (const FileError& e) {
      throw FileError(
          "the new checkpoint " + target.string() + " is valid, but older ones were not removed: " + e.what(),
          e.error_number());
    } catch (const DataError& e) {
      throw DataError("the new checkpoint " + target.string() +
                      " is valid, but older ones were not removed: " + e.what());
    }
    return target;
  }

  // Returns the folder of every checkpoint that counts, valid or not, newest first.
  [[nodiscard]] std::vector<Path> list() const {
    std::vector<Path> out;
    for (const auto& found : scan()) out.push_back(folder_ / found.text());
    return out;
  }

  // Records that a generation of members starts after `step`. From now on, checkpoints that earlier generations wrote
  // or still write for later steps do not count. The mark of the best checkpoint is copied to the new generation if
  // that checkpoint counts.
  void begin_generation(std::int64_t generation, std::int64_t step) {
    if (!path_exists(folder_)) make_folder();  // save() syncs it, so a disk that cannot sync now does not prevent this
    require_lease_();
    const auto marked = best();
    FileWriter(folder_ / GenerationBegin{generation, step}.text()).close();
    if (marked && find(marked->step)) mark_best(marked->step, marked->metric, generation);
    for (const GenerationBegin& b : CheckpointNames::in(folder_).begins)
      if (b.generation < generation && b.step >= step) (void)::unlink((folder_ / b.text()).c_str());
  }
  // Removes the records of all generations. Call this when a run starts again with members that do not change.
  void forget_generations() {
    for (const GenerationBegin& b : CheckpointNames::in(folder_).begins) (void)::unlink((folder_ / b.text()).c_str());
  }
  // Returns the latest generation that has started or saved in this folder, or 0.
  [[nodiscard]] std::int64_t latest_generation() const { return CheckpointNames::in(folder_).latest_generation(); }

  // Reads a checkpoint and checks all of it. Throws DataError that names the file and what is wrong with it.
  [[nodiscard]] LoadedCheckpoint load(const Path& folder) const {
    LoadedCheckpoint c = load_checkpoint(folder);
    const auto found = CheckpointName::parse(folder.filename().string());
    if (found && found->step != c.step())
      fail<DataError>({"checkpoint ", folder.native()}, {"step ", found->step, ", as in its name"}, c.step());
    return c;
  }

  // Returns the newest valid checkpoint, or no value if no checkpoint is valid. Adds a line to `complaints` for each
  // checkpoint that it skips.
  [[nodiscard]] std::optional<LoadedCheckpoint> load_newest_valid(
      std::vector<std::string>* complaints = nullptr) const {
    for (const Path& path : list()) {
      try {
        return load(path);
      } catch (const DataError& e) {
        if (complaints != nullptr) complaints->push_back(path.string() + " is not used: " + e.what());
      }
    }
    return std::nullopt;
  }

  // Keeps the checkpoint of that step until another checkpoint is marked. Throws UsageError if that step has no
  // checkpoint, or if the metric is not finite.
  void mark_best(std::int64_t step, double metric, std::int64_t generation = 0) {
    if (!find(step)) fail<UsageError>("checkpoint best", "a saved step", step);
    const std::string text = write_json(Json::object({{"step", step}, {"metric", metric}})) + "\n";
    require_lease_();
    atomic_write_file(folder_ / best_name(generation), text);
    for (const std::int64_t b : CheckpointNames::in(folder_).bests)
      if (b < generation) (void)::unlink((folder_ / best_name(b)).c_str());
  }
  // Returns the best checkpoint, or no value if no checkpoint is marked. Throws DataError if best.json is damaged.
  [[nodiscard]] std::optional<BestCheckpoint> best() const {
    const CheckpointNames names = CheckpointNames::in(folder_);
    for (const std::int64_t generation : names.bests) {
      const Path path = folder_ / best_name(generation);
      const Json json = parse_json(read_text_file(path, 4096), path.string());
      const BestCheckpoint found{json.at("step", path.string()).as_integer(path.string()),
                                 json.at("metric", path.string()).as_double(path.string())};
      if (names.counts(generation, found.step)) return found;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::optional<double> best_metric() const {
    const auto marked = best();
    return marked ? std::optional(marked->metric) : std::nullopt;
  }
  // Loads the best checkpoint. Returns no value if no checkpoint is marked. Throws DataError if it is not valid.
  [[nodiscard]] std::optional<LoadedCheckpoint> load_best() const {
    const auto marked = best();
    if (!marked) return std::nullopt;
    const auto path = find(marked->step);
    if (!path)
      fail<DataError>({"checkpoint ", (folder_ / "best.json").native()}, {"a checkpoint of step ", marked->step},
                      "none");
    return load(*path);
  }

  // Removes the checkpoints after `step`, and the mark of the best one if it is after `step`. A run that continues from
  // an older checkpoint needs this, because otherwise a later checkpoint counts as the newest.
  void discard_newer_than(std::int64_t step) {
    const auto marked = best();
    const CheckpointNames names = CheckpointNames::in(folder_);
    if (marked && marked->step > step)
      for (const std::int64_t b : names.bests) remove_tree(folder_ / best_name(b));
    for (const auto& found : names.checkpoints)
      if (found.step > step) remove(folder_ / found.text());
  }

 private:
  // Returns the checkpoints that count, newest first. For the same step, the latest generation comes first, and a
  // checkpoint comes before the ".old" one that it replaces.
  [[nodiscard]] std::vector<CheckpointName> scan() const {
    const CheckpointNames names = CheckpointNames::in(folder_);
    std::vector<CheckpointName> found;
    for (const CheckpointName& c : names.checkpoints)
      if (names.counts(c.generation, c.step)) found.push_back(c);
    return found;
  }

  [[nodiscard]] std::optional<Path> find(std::int64_t step) const {
    for (const auto& found : scan())
      if (found.step == step) return folder_ / found.text();
    return std::nullopt;
  }

  // Makes the folder, and makes sure that its name is on the disk: the process that made it may not have been able to.
  void make_folder() {
    if (named_on_disk_ && path_exists(folder_)) return;
    make_directories(folder_);
    fsync_directory(folder_of(folder_));
    fsync_directory(folder_of(folder_of(folder_)));
    named_on_disk_ = true;
  }

  // Writes to `aside`, which is renamed to `target` later. Messages name `target`.
  static void write_aside(const Path& aside, const Path& target, const CheckpointData& data) {
    if (::mkdir(aside.c_str(), 0777) != 0) fail_file("make the folder", target, errno);
    CheckpointManifest manifest{data.step, data.counters, data.options, {}, {}};
    manifest.model =
        write_tensors({aside / "model.safetensors", target / "model.safetensors"}, span_of(data.model), data.metadata);
    manifest.optimizer =
        write_tensors({aside / "optimizer.safetensors", target / "optimizer.safetensors"}, span_of(data.optimizer), {});
    const std::string text = write_manifest(manifest);
    if (text.size() > detail::most_manifest_bytes)
      fail<UsageError>("checkpoint", "counters and options of at most 16 MiB", {text.size(), " bytes"});
    write_synced({aside / "manifest.json", target / "manifest.json"}, text);
    write_synced({aside / "COMPLETE", target / "COMPLETE"}, crc_text(crc32c(text)) + "\n");
    fsync_directory(aside);
  }
  static CheckpointFile write_tensors(FileWriter writer, std::span<const TensorRecord> records,
                                      const SafetensorsMetadata& metadata) {
    write_safetensors(writer, records, metadata);
    writer.sync();
    writer.close();
    return {writer.size(), writer.crc()};
  }
  static void write_synced(FileWriter writer, std::string_view text) {
    writer.write(text);
    writer.sync();
    writer.close();
  }

  [[nodiscard]] static Path old_of(const Path& target) { return Path(target.string() + ".old"); }

  // Renames the earlier checkpoint of the same step to .old, because rename() cannot replace a folder that is not
  // empty. It stays readable as .old until the new one has been read back.
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
    // Fails if no .old exists, or if the target exists. Both cases are right.
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

  // Renames the folder first, so that a reader never sees a partly removed checkpoint.
  static void remove(const Path& path) {
    const Path aside = aside_path(path);
    rename_path(path, aside);
    remove_tree(aside);
  }
  // Called while another error is handled. Reports no error itself, because the first one is more important.
  static void discard(const Path& path) noexcept {
    try {
      if (path_exists(path)) remove(path);
    } catch (const std::exception&) {
      // The rest is not a valid checkpoint. The next save() may remove it.
    }
  }

  void prune(const CheckpointData& saved) const {
    const auto marked = best();
    const CheckpointNames names = CheckpointNames::in(folder_);
    int kept = 1;
    std::int64_t last = -1, oldest = saved.step;  // steps
    for (const CheckpointName& found : names.checkpoints) {
      const bool again = std::exchange(last, found.step) == found.step;
      const bool newer = found.generation > saved.generation;
      // The first entry of a step is enough. Entries that do not count are from writers that the job has removed.
      const bool idle = !names.counts(found.generation, found.step) ||
                        (again && (found.replaced || found.generation < saved.generation));
      const bool stays = found.step == saved.step || (marked && marked->step == found.step);
      if (newer || (!idle && (stays || ++kept <= keep_))) {
        oldest = std::min(oldest, found.step);
        continue;
      }
      require_lease_();
      remove(folder_ / found.text());
    }
    for (const GenerationBegin& b : names.begins)
      if (b.generation < saved.generation && b.step < oldest) (void)::unlink((folder_ / b.text()).c_str());
  }

  Path folder_;
  int keep_;
  std::function<void()> require_lease_;
  bool named_on_disk_ = false;  // this process has synced the folders that contain folder_
};

}  // namespace tutti::io
