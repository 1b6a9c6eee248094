// SPDX-License-Identifier: MIT
#include "tools/launch/job/blame.hpp"

#include <signal.h>

#include <string>

#include <tutti/core/error.hpp>

#include "tools/launch/host/process.hpp"

namespace tutti::launch {

std::string describe(const End& end) {
  if (end.why == "orphaned") return "the loss of the mpirun daemon that started it";
  if (end.why == "vanished") return "its end together with that of its tutti-launch --exec-rank, as by SIGKILL";
  if (!end.by_signal) return "exit code " + std::to_string(end.code);
  return "its end by " + signal_text(end.code);
}

Problem problem_of(const ProcessExit& blamed, const std::string& last_report, bool elastic) {
  const bool killed = blamed.end.by_signal && blamed.end.code == SIGKILL;
  std::string hint;
  if (elastic && (killed || blamed.end.why != "own"))
    hint = "--resume continues from the last checkpoint" +
           std::string(killed ? "; dmesg shows whether the system killed it because memory ran out" : "");
  else if (killed)
    hint = "the system kills processes when memory runs out, see dmesg";
  return {exit_code_for(blamed.end),
          error_message(blamed.name + " on " + blamed.host, "exit code 0", describe(blamed.end) + last_report, hint)};
}

Problem unheard_launcher(const std::string& host, double seconds) {
  return {static_cast<int>(ExitCode::communication),
          error_message("host " + host, "a message of tutti-launch within " + seconds_text(seconds),
                        "none, and the host ended its processes; tutti-launch was paused or its connection was lost",
                        "set a longer time with --host-timeout")};
}

Problem problem_of_outside(const ProcessExit& e, double seconds) {
  if (e.end.why == "unheard") return unheard_launcher(e.host, seconds);
  return {exit_code_for(e.end), error_message("host " + e.host, "the job to continue",
                                              "its end by a signal from outside", "was it 'tutti-launch --kill'?")};
}

}  // namespace tutti::launch
