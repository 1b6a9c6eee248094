// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>

#include "commands.hpp"
#include "process.hpp"
#include "rank_process.hpp"

namespace tutti::launch {

// How a process ended, in the order in which the launcher heard of it.
struct Ending {
  std::string name, host;
  End end;

  [[nodiscard]] bool good() const noexcept { return !end.by_signal && end.code == 0; }
};

// The process whose fault it was: the first that failed of itself. One that gave up because it lost another (exit code
// 5) gives way to a process that failed otherwise, and whoever vanished or was orphaned comes last.
[[nodiscard]] inline const Ending* culprit(const std::vector<Ending>& endings) {
  const auto first = [&](auto&& is) -> const Ending* {
    const auto found = std::find_if(endings.begin(), endings.end(), is);
    return found == endings.end() ? nullptr : &*found;
  };
  const auto failed = [](const Ending& e) { return !e.good() && e.end.why == "own"; };
  const int lost = static_cast<int>(ExitCode::communication);
  if (const auto* e = first([&](const Ending& x) { return failed(x) && (x.end.by_signal || x.end.code != lost); }))
    return e;
  if (const auto* e = first(failed)) return e;
  if (const auto* e = first([](const Ending& x) { return x.end.why == "vanished"; })) return e;
  return first([](const Ending& e) { return !e.good() && e.end.why == "orphaned"; });
}

// The launcher's exit code for it: the process's own; for one that crashed 1, for one that was killed 5.
[[nodiscard]] inline int exit_code_for(const End& end) {
  if (!end.by_signal) return end.code;
  for (const int crash : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP})
    if (end.code == crash) return static_cast<int>(ExitCode::internal);
  return static_cast<int>(ExitCode::communication);
}

// After SIGINT or SIGTERM a process may end with 130 or 143, or by the signal.
[[nodiscard]] inline bool failed_despite_signal(const Ending& e) {
  if (e.end.why != "own") return false;
  const int base = e.end.by_signal ? 0 : 128;
  return e.end.code != base + SIGINT && e.end.code != base + SIGTERM;
}

[[nodiscard]] inline std::string describe(const End& end) {
  if (end.why == "orphaned") return "the loss of the mpirun daemon that had started it";
  if (end.why == "vanished") return "its end together with that of its tutti-launch --exec-rank, as by SIGKILL";
  if (!end.by_signal) return "exit code " + std::to_string(end.code);
  return "its end by " + signal_text(end.code);
}

// What is said of the process whose fault it was; `last_report`: where it was, as far as is known.
[[nodiscard]] inline Problem problem_of(const Ending& blamed, const std::string& last_report) {
  const bool killed = blamed.end.by_signal && blamed.end.code == SIGKILL;
  return {blamed.end.why == "own" ? exit_code_for(blamed.end) : static_cast<int>(ExitCode::communication),
          error_message(blamed.name + " on " + blamed.host, "exit code 0", describe(blamed.end) + last_report,
                        killed ? "the system kills when memory runs out, see dmesg" : "")};
}

// That somebody else ended the job, or an agent which heard nothing of the launcher for so many seconds, if that is how
// a process ended.
[[nodiscard]] inline std::optional<Problem> problem_of_outside(const std::vector<Ending>& endings, double seconds) {
  for (const Ending& e : endings)
    if (e.end.why == "unheard")
      return Problem{static_cast<int>(ExitCode::communication),
                     error_message("host " + e.host, "a word of tutti-launch within " + seconds_text(seconds),
                                   "none, and it ended what it had; it stood still, or was cut off",
                                   "--host-timeout sets the time")};
  for (const Ending& e : endings)
    if (e.end.why == "ended")
      return Problem{static_cast<int>(ExitCode::terminated),
                     error_message("host " + e.host, "the job to run on", "its end from outside",
                                   "was it 'tutti-launch --kill'?")};
  return std::nullopt;
}

}  // namespace tutti::launch
