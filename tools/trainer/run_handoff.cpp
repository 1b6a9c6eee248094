// SPDX-License-Identifier: MIT
#include "tools/trainer/run_handoff.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>

namespace tutti::trainer {

void take_kept_run(RunOptions& o, const std::string& text) {
  std::istringstream in(text);
  RunHandoff k;
  std::string run_dir;
  if (!(in >> k.step >> k.ended_ns) || in.get() != ' ' || !std::getline(in, run_dir, '\0') || run_dir.empty())
    fail<CommunicationError>("environment TUTTI_KEPT", "a step, a time and a run's folder", "something else",
                             "the programs of a job must be of one version");
  o.run_dir = run_dir;
  o.clear_log = false;
  if (k.step >= 0) {
    o.resume = "latest";
    o.load_epoch.reset();
    o.pretrained.clear();
  }
  o.kept = k;
}

void require_kept_checkpoint(const RunOptions& o) {
  if (!o.kept || o.kept->step < 0) return;
  std::int64_t newest = -1;
  for (const io::Path& p : io::CheckpointStore(o.run_dir).list()) {
    const std::string digits = p.filename().string().substr(std::string("step-").size());
    newest = std::max<std::int64_t>(newest, std::strtoll(digits.c_str(), nullptr, 10));
  }
  if (newest < o.kept->step)
    fail<DataError>("--run-dir", "the checkpoint of step " + std::to_string(o.kept->step) + " in " + o.run_dir,
                    newest < 0 ? "none" : "the one of step " + std::to_string(newest) + " as the newest",
                    "rank 0 is on another host now: use a folder that all hosts share, or keep the launcher's host "
                    "in the job");
}

RunHandoffWriter::RunHandoffWriter(const RunOptions& o) : file_(read_launch_environment().keep), run_dir_(o.run_dir) {
  if (o.kept) now_.step = o.kept->step;
  write();
}

void RunHandoffWriter::saved(const std::string& checkpoint) {
  const std::string name = io::Path(checkpoint).filename().string();
  now_.step = std::strtoll(name.substr(name.find('-') + 1).c_str(), nullptr, 10);
  write();
}

void RunHandoffWriter::members_change() {
  now_.ended_ns = wall_clock_ns();
  write();
}

}  // namespace tutti::trainer
