// SPDX-License-Identifier: MIT
#include "tools/report/read_run.hpp"

#include <cstddef>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

#include "tools/report/read_evaluation.hpp"
#include "tools/report/read_find_lr.hpp"
#include "tools/report/read_log.hpp"

namespace tutti::report_tool {

RunData read_run(const std::string& named, std::size_t most_images) {
  namespace fs = std::filesystem;
  std::error_code none_there;
  const bool is_log = fs::is_regular_file(named, none_there) && fs::path(named).filename() == "log.jsonl";
  const fs::path folder = is_log ? fs::absolute(named).parent_path() : fs::path(named);
  if (!fs::is_directory(folder, none_there))
    fail<DataError>(printable(named), "a run's folder", fs::exists(named, none_there) ? "a file" : "none",
                    "give the folder that a training got as --run-dir");
  RunData run;
  run.path = named;
  run.name = fs::absolute(folder / "x").lexically_normal().parent_path().filename().string();
  const fs::path log = folder / "log.jsonl";
  const bool has_log = fs::exists(fs::symlink_status(log, none_there));
  const fs::path ramp = folder / "find_lr.json";
  const bool has_ramp = fs::exists(fs::symlink_status(ramp, none_there));
  if (!has_log && !has_ramp && !fs::is_directory(folder / "checkpoints", none_there))
    fail<DataError>(printable(named), "a run's folder, with log.jsonl", "a folder without log.jsonl",
                    "if the training used --log-dir, give that folder");
  try {
    if (has_log)
      LogReader(run).read(log);
    else if (!has_ramp)
      run.problems.push_back("there is no " + log.string() + ", so there are no curves");
  } catch (const Error& e) {
    run.problems.emplace_back(e.what());
  }
  const fs::path evaluation = folder / "evaluation.json";
  try {
    if (fs::exists(fs::symlink_status(evaluation, none_there)))
      run.evaluation = read_evaluation(evaluation, most_images);
  } catch (const Error& e) {
    run.problems.push_back("there is no confusion matrix: " + std::string(e.what()));
  }
  try {
    if (has_ramp) run.find_lr = read_find_lr(ramp);
  } catch (const Error& e) {
    run.problems.push_back("there is no curve of --find-lr: " + std::string(e.what()));
  }
  return run;
}

void tell_apart(std::vector<RunData>& runs) {
  std::set<std::string> once, twice;
  for (const RunData& r : runs)
    if (!once.insert(r.name).second) twice.insert(r.name);
  for (RunData& r : runs)
    if (twice.count(r.name) > 0) r.name = r.path;
}

}  // namespace tutti::report_tool
