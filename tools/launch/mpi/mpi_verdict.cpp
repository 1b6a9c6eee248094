// SPDX-License-Identifier: MIT
#include "tools/launch/mpi/mpi_verdict.hpp"

#include <algorithm>
#include <vector>

namespace tutti::launch {

std::vector<ProcessExit> done_in_order(std::vector<ProcessExit> all) {
  for (ProcessExit& e : all)
    if (in_order(e)) e.end = {};
  return all;
}

bool ends_job(const std::vector<ProcessExit>& all) {
  return std::any_of(all.begin(), all.end(), [](const ProcessExit& e) {
    if (e.end.by_signal || e.end.why != "own") return false;
    for (const ExitCode code : {ExitCode::usage, ExitCode::not_finite, ExitCode::interrupted, ExitCode::terminated})
      if (e.end.code == static_cast<int>(code)) return true;
    return false;
  });
}

std::vector<ProcessExit> culprits_of(const std::vector<ProcessExit>& all) {
  std::vector<ProcessExit> failed, vanished;
  for (const ProcessExit& e : all) {
    const bool lost_another = !e.end.by_signal && e.end.code == static_cast<int>(ExitCode::communication);
    if (in_order(e)) continue;
    if (e.end.why == "own" && !lost_another) failed.push_back(e);
    if (e.end.why == "vanished") vanished.push_back(e);
  }
  // After a rank has failed, mpirun kills the other ranks, on a busy host together with their agents.
  return failed.empty() ? vanished : failed;
}

}  // namespace tutti::launch
