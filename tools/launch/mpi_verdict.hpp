// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include <tutti/core/error.hpp>

#include "blame.hpp"

// What the ends of the ranks of one mpirun say, where others may go on.
namespace tutti::launch {

// It has done its work, or makes way for others.
[[nodiscard]] inline bool in_order(const ProcessExit& e) {
  return e.good() || (!e.end.by_signal && e.end.code == static_cast<int>(ExitCode::restart));
}
// Who only made way has done nothing wrong.
[[nodiscard]] inline std::vector<ProcessExit> done_in_order(std::vector<ProcessExit> all) {
  for (ProcessExit& e : all)
    if (in_order(e)) e.end = {};
  return all;
}

// What others would only do again: options that are wrong, a loss that is not finite, a stop that all were told of.
[[nodiscard]] inline bool ends_job(const std::vector<ProcessExit>& all) {
  return std::any_of(all.begin(), all.end(), [](const ProcessExit& e) {
    if (e.end.by_signal || e.end.why != "own") return false;
    for (const ExitCode code : {ExitCode::usage, ExitCode::not_finite, ExitCode::interrupted, ExitCode::terminated})
      if (e.end.code == static_cast<int>(code)) return true;
    return false;
  });
}

// Who failed of itself. mpirun then ended the others, unless these had noticed first and given up (exit code 5): whom
// nobody else explains is not blamed.
[[nodiscard]] inline std::vector<ProcessExit> culprits_of(const std::vector<ProcessExit>& all) {
  std::vector<ProcessExit> found;
  for (const ProcessExit& e : all) {
    const bool lost_another = !e.end.by_signal && e.end.code == static_cast<int>(ExitCode::communication);
    if (!in_order(e) && ((e.end.why == "own" && !lost_another) || e.end.why == "vanished")) found.push_back(e);
  }
  return found;
}

}  // namespace tutti::launch
