// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <string>

#include <tutti/core/error.hpp>

#include "commands.hpp"
#include "job_verdict.hpp"
#include "process.hpp"
#include "rank_process.hpp"

namespace tutti::launch {

[[nodiscard]] inline std::string describe(const End& end) {
  if (end.why == "orphaned") return "the loss of the mpirun daemon that had started it";
  if (end.why == "vanished") return "its end together with that of its tutti-launch --exec-rank, as by SIGKILL";
  if (!end.by_signal) return "exit code " + std::to_string(end.code);
  return "its end by " + signal_text(end.code);
}

// The problem that is reported for the process that caused the end. last_report: its last known position. elastic: the
// others would have gone on, if any of them still held what was trained.
[[nodiscard]] inline Problem problem_of(const ProcessExit& blamed, const std::string& last_report, bool elastic) {
  const bool killed = blamed.end.by_signal && blamed.end.code == SIGKILL;
  std::string hint;
  if (elastic && (killed || blamed.end.why != "own"))
    hint = "--resume goes on from the last checkpoint" +
           std::string(killed ? "; dmesg tells whether the system killed it because memory ran out" : "");
  else if (killed)
    hint = "the system kills when memory runs out, see dmesg";
  return {exit_code_for(blamed.end),
          error_message(blamed.name + " on " + blamed.host, "exit code 0", describe(blamed.end) + last_report, hint)};
}

// The problem of a job whose process another program ended, or an agent that did not hear of the launcher for
// `seconds`.
[[nodiscard]] inline Problem problem_of_outside(const ProcessExit& e, double seconds) {
  if (e.end.why == "unheard")
    return {exit_code_for(e.end),
            error_message("host " + e.host, "a word of tutti-launch within " + seconds_text(seconds),
                          "none, and it ended what it had; it stood still, or was cut off",
                          "--host-timeout sets the time")};
  return {exit_code_for(e.end), error_message("host " + e.host, "the job to run on", "its end from outside",
                                              "was it 'tutti-launch --kill'?")};
}

}  // namespace tutti::launch
