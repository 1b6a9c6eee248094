// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/launch/agent/rank_process.hpp"

// Decides the exit code of a job. It is a pure function of how its processes ended, whether its work was done, and
// which problems the launcher found. Used by running_job.hpp.
namespace tutti::launch {

// How a process ended.
struct ProcessExit {
  std::string name, host;
  End end;
  // Elastic jobs only: the process was a member, did the work of the job to its end, and ended with exit code 0. A
  // worker that left the job earlier has not done its work.
  bool did_work = false;

  [[nodiscard]] bool good() const noexcept { return !end.by_signal && end.code == 0; }
  [[nodiscard]] bool is_server() const noexcept { return std::string_view(name).starts_with("server"); }
  // Returns whether the process failed, and was not ended by the launcher, mpirun, or an agent.
  [[nodiscard]] bool is_own_failure() const noexcept { return !good() && end.why == "own"; }
  // Returns whether the exit code is 5: the process ended because it lost another process.
  [[nodiscard]] bool lost_another() const noexcept {
    return !end.by_signal && end.code == static_cast<int>(ExitCode::communication);
  }
  // Returns whether the exit code is 130 or 143: the process was asked to stop, saved its state and stopped.
  [[nodiscard]] bool stopped_in_order() const noexcept;
  // Returns whether SIGINT or SIGTERM ended the process, because it does not handle them.
  [[nodiscard]] bool ended_by_stop_signal() const noexcept {
    return end.by_signal && (end.code == SIGINT || end.code == SIGTERM);
  }
};

// Returns the launcher's exit code for the end of one process.
[[nodiscard]] int exit_code_for(const End& end);

// Everything that decides how a job ended.
struct JobEnd {
  // In the order in which the launcher received them. In an elastic job only those since the current generation began:
  // its members have replaced the processes that were lost earlier.
  std::vector<ProcessExit> endings;
  bool elastic = false;
  int interrupted = 0;  // the signal by which the user ended the job, or 0
  int problem = 0;      // exit code of the first problem that the launcher found itself, or 0
  // Elastic jobs only: exit code for the loss of a silent or unreachable process that ended the job, or 0. It does not
  // count if a worker has done the work.
  int loss = 0;
  bool lost_host = false;  // the connection to a host broke
  int mpirun = 0;          // exit code for mpirun's failure; 0: it did not fail
};

struct JobResult {
  enum class Cause {
    done,         // all processes did their work
    problem,      // JobEnd::problem or JobEnd::loss
    interrupted,  // the user ended the job; the finished work is saved
    process,      // `blamed` failed
    lost_host,    // processes ended because they lost other processes, and a host does not answer
    mpirun,       // mpirun failed, and no process did
    outside,      // another program ended `blamed`, or an agent that was disconnected did
  };
  Cause cause = Cause::done;
  int code = 0;
  const ProcessExit* blamed = nullptr;  // one of JobEnd::endings
};

// Returns the process that caused the end: the first process that failed by itself; if there is none, one that stopped
// in order; then one that ended because it lost another process; then one that vanished; then one that was orphaned. In
// an elastic job a process that failed comes before one that was killed, and workers come before servers, unless the
// workers only lost a server. May return null.
[[nodiscard]] const ProcessExit* culprit(const JobEnd& job);

// Decides how the job ended.
[[nodiscard]] JobResult judge(const JobEnd& job);

}  // namespace tutti::launch
