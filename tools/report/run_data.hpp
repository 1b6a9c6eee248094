// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/io/json/json_value.hpp>

#include "tools/report/table.hpp"

namespace tutti::report_tool {

inline constexpr std::string_view step_columns[] = {
    "step",  "time",      "train_loss", "train_top1", "images_per_second", "lr",
    "batch", "data_wait", "comm_wait",  "compute",    "gpu_utilisation"};
inline constexpr std::string_view epoch_columns[] = {
    "step",      "time",          "epoch",         "train_loss",    "train_top1",        "test_loss", "test_top1",
    "test_topk", "test_ema_loss", "test_ema_top1", "test_ema_topk", "images_per_second", "lr",        "batch",
    "seconds",   "data_wait",     "comm_wait",     "compute",       "gpu_utilisation",   "skipped"};

// A change of the job's members.
struct Change {
  double step = 0, time = 0, ranks = 0, seconds = none, batch = none;
};

// A change of the shares of logical ranks, with the predicted seconds of a step before and after it.
struct ShareChange {
  double step = 0, time = 0, before = none, after = none;
  std::string shares, note;
};

// The data of a run's folder.
struct RunData {
  std::string name, path;
  std::string status = "not begun", message;
  std::string top_k;            // "5" if the log has "test_top5"
  io::Json facts, options;      // from the last start; null without a start
  std::int64_t starts = 0;      // number of processes that were started, in this log
  std::vector<double> resumed;  // the steps of resumes, since the run began from step 0
  Table steps{step_columns}, epochs{epoch_columns};
  double time = 0;  // seconds of training
  std::vector<Change> changes;
  std::vector<ShareChange> shares;
  std::vector<std::string> warnings;  // the first warnings
  std::int64_t more_warnings = 0;
  io::Json views;                     // the last line of event "views"
  io::Json evaluation;                // evaluation.json, in the form that the page shows
  io::Json find_lr;                   // find_lr.json, in the form that the page shows
  std::vector<std::string> problems;  // what could not be read
  std::vector<std::string> notes;     // other remarks for the reader
};

}  // namespace tutti::report_tool
