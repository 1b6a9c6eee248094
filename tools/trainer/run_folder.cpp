// SPDX-License-Identifier: MIT
#include "tools/trainer/run_folder.hpp"

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/file.hpp>
#include <tutti/train/detail/files/run_folder.hpp>

#include "tools/trainer/options_json.hpp"
#include "tools/trainer/scripted_options.hpp"
#include "tools/trainer/start.hpp"

namespace tutti::trainer {

namespace {

// The file of --find-lr does not count: a training may follow in its folder.
bool is_empty_folder(const io::Path& path) {
  std::error_code error;
  bool empty = true;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    empty = empty && it->path().filename() == "find_lr.json";
  if (error) io::fail_file("list the folder", path, error.value());
  return empty;
}

bool same_folder(const io::Path& a, const io::Path& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error) && !error;
}

std::string new_run_name(const RunOptions& o) {
  char time[32];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  std::strftime(time, sizeof time, "%Y%m%d-%H%M%S", &local);
  const io::Path base =
      "runs/" + o.dataset + "-" + o.network + (o.depth > 0 ? std::to_string(o.depth) : "") + "-" + time;
  io::Path path = base;
  for (int i = 2; io::path_exists(path); ++i) path = base.string() + "-" + std::to_string(i);
  return path.string();
}

}  // namespace

namespace detail {

void clear_run(const io::Path& folder) {
  if (!io::path_exists(folder)) return;
  if (!std::filesystem::is_directory(folder))
    fail<UsageError>("--log-dir", "a folder", folder.string() + ", which is not a folder");
  if (is_empty_folder(folder)) return;
  if (!io::path_exists(folder / "log.jsonl") && !io::path_exists(folder / "checkpoints"))
    fail<UsageError>("--clear-log", "the folder of a run, with its log.jsonl or checkpoints",
                     folder.string() + ", which holds other files", "remove it by hand, or name another --log-dir");
  tutti::detail::RunFolderLock lock;
  lock.require(folder, "--log-dir");
  io::remove_tree(folder);
}

}  // namespace detail

std::string how_to_resume(const RunOptions& o) {
  if (o.traits().as_horovod)
    return "--log-dir " + o.run_dir + " continues it" + (o.clear_log ? " without --clear-log" : "");
  const io::Path logs = log_folder(o);
  return "--run-dir " + o.run_dir + (logs == o.run_dir ? "" : " --log-dir " + logs.string()) + " --resume continues it";
}

void settle_run_folder(RunOptions& o) {
  if (!o.run_dir.empty()) tutti::detail::require_own_folder(o.run_dir, "--run-dir");
  if (!o.log_dir.empty()) tutti::detail::require_own_folder(o.log_dir, "--log-dir");
  if (o.clear_log) detail::clear_run(o.run_dir);
  const auto holds = [&](const char* name) { return io::path_exists(io::Path(o.run_dir) / name); };
  if (o.traits().as_horovod && o.resume.empty() && !(o.eval_only && !o.pretrained.empty()) && holds("checkpoints"))
    o.resume = "latest";
  // A script, or the same command of tutti-train, may also follow a failure that occurred before the first checkpoint.
  const bool begins_again = o.program == Program::tutti_train && !o.eval_only && !o.find_lr;
  if ((is_scripted(o) || begins_again) && o.resume.empty() && !o.load_epoch &&
      (holds("checkpoints") || holds("log.jsonl")))
    o.resume = "latest";
  bool other_run = false;
  if (!o.resume.empty() && o.resume != "latest" && o.resume != "best") {
    io::Path path = o.resume;
    while (path.has_parent_path() && path.filename().empty()) path = path.parent_path();  // a '/' at the end
    if (!io::path_exists(path))
      fail<DataError>("--resume", "a checkpoint or a run", "no file or folder at " + path.string());
    const bool whole_run = io::path_exists(path / "checkpoints");
    const io::Path run = whole_run ? path : detail::run_of(path);
    if (o.run_dir.empty()) o.run_dir = run.string();
    other_run = !same_folder(o.run_dir, run);
    if (whole_run) {
      std::vector<std::string> complaints;
      const auto newest = io::CheckpointStore(run).load_newest_valid(&complaints);
      if (!newest)
        fail<DataError>("--resume", "a complete checkpoint in " + path.string(),
                        complaints.empty() ? "none" : complaints.front());
      path = newest->path();
    }
    o.resume = path.string();
  }
  if (o.run_dir.empty()) o.run_dir = new_run_name(o);
  if (o.eval_only && !o.pretrained.empty() && o.resume.empty()) return;
  const char* const named = o.traits().as_horovod ? "--log-dir" : "--run-dir";
  const bool goes_on = (!o.resume.empty() && !other_run) || o.load_epoch || o.kept;
  if (io::path_exists(o.run_dir) && !goes_on) {
    if (!std::filesystem::is_directory(o.run_dir))
      fail<UsageError>(named, "a folder", o.run_dir + ", which is not a folder");
    if (!is_empty_folder(o.run_dir))
      fail<UsageError>(named, "an empty or a new folder", o.run_dir + ", which has files",
                       other_run ? "a run that begins from the checkpoint of another run needs a folder of its own"
                                 : "give --resume to continue that run, or name another folder");
  }
  if (!goes_on && log_folder(o) != o.run_dir && io::path_exists(log_folder(o) / "log.jsonl"))
    fail<UsageError>("--log-dir", "a folder without a run's log.jsonl", o.log_dir + ", which has a log.jsonl",
                     "give --resume to continue that run, or name another folder");
}

std::optional<io::LoadedCheckpoint> find_checkpoint(const RunOptions& o, const Warn& warn) {
  const io::CheckpointStore store(o.run_dir);
  if (o.load_epoch) {
    for (const auto& path : store.list()) {
      try {
        auto loaded = store.load(path);
        const auto& c = loaded.counters();
        if (c.at("epoch").as_integer() == *o.load_epoch && c.at("consumed").as_integer() == 0) return loaded;
      } catch (const DataError& e) {
        warn(path.string() + " is not used: " + e.what());
      }
    }
    fail<DataError>(
        "--load-epoch",
        "a checkpoint of the end of epoch " + std::to_string(*o.load_epoch) + " in " + store.folder().string(), "none",
        "use --model-prefix to keep all checkpoints");
  }
  if (o.resume.empty()) return std::nullopt;
  if (o.resume == "latest") {
    std::vector<std::string> complaints;
    auto loaded = store.load_newest_valid(&complaints);
    for (const auto& c : complaints) warn(c);
    if (!loaded && !complaints.empty())
      fail<DataError>("--resume", "a complete checkpoint in " + store.folder().string(), "only damaged ones");
    return loaded;
  }
  if (o.resume != "best") return io::load_checkpoint(o.resume);
  auto best = store.load_best();
  if (!best)
    fail<DataError>("--resume=best", "a checkpoint marked as best in " + store.folder().string(), "none",
                    "use --resume, or train with evaluation");
  return best;
}

void compare_options(const io::Json& before, const RunOptions& o, const Warn& warn) {
  constexpr std::string_view of_net[] = {"augmentation", "bn-eps",  "dataset",  "depth",   "image-shape", "image-size",
                                         "model",        "network", "rgb-mean", "rgb-std", "v1",          "width"};
  const io::Json now = options_json(o);
  for (const auto& [name, scope] : scopes_of(o)) {
    const io::Json *was = before.find(name), *is = now.find(name);
    if (o.eval_only && std::find(std::begin(of_net), std::end(of_net), name) == std::end(of_net)) continue;
    if (scope == Scope::training && was != nullptr && is != nullptr && !(*was == *is))
      warn("--" + name + " was " + io::write_json(*was) + " when the checkpoint was made and is " +
           io::write_json(*is) + " now");
  }
}

void require_same_split(const io::Json& before, const RunOptions& o, std::int64_t not_held_out) {
  const io::Json now = options_json(o);
  for (const char* const name : {"validation-share", "seed"}) {
    const io::Json* const was = before.find(name);
    if (was == nullptr || *was == *now.find(name)) continue;
    const auto text = [](const io::Json& v) { return v.is_string() ? v.as_string() : io::write_json(v); };
    fail<UsageError>(std::string("--") + name, text(*was) + ", by which the validation images of this run were chosen",
                     text(*now.find(name)), "with another value it would be evaluated on images of its training");
  }
  const io::Json* const was = before.find("not_held_out");
  if (was != nullptr && !(*was == io::Json(not_held_out)))
    fail<UsageError>(o.data_dir.empty() ? "--data-train" : "--data-dir",
                     "the " + io::write_json(*was) + " images of this run's training, apart from the held out ones",
                     std::to_string(not_held_out),
                     "images were added or removed, so it would be evaluated on images of its training: restore them, "
                     "or begin a run in another folder; with a folder of validation images, a run accepts new training "
                     "images");
}

void give_up_later_checkpoints(const RunOptions& o, std::int64_t step, const Warn& warn) {
  io::CheckpointStore store(o.run_dir);
  const auto before = store.list().size();
  store.discard_newer_than(step);
  const auto given_up = before - store.list().size();
  if (given_up > 0) warn("checkpoints after step " + std::to_string(step) + " removed: " + std::to_string(given_up));
}

}  // namespace tutti::trainer
