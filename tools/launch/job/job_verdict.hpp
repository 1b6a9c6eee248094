// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/launch/agent/rank_process.hpp"

// Decides the exit code of a job: a pure function of how its processes ended, whether its work was done, and what
// problems the launcher found. Used by running_job.hpp.
namespace tutti::launch {

// How a process ended.
struct ProcessExit {
  std::string name, host;
  End end;
  // Of an elastic job: the process was a member, did the work of the job to its end, and ended with exit code 0. A
  // worker that left the job before has not done its work.
  bool did_work = false;

  [[nodiscard]] bool good() const noexcept { return !end.by_signal && end.code == 0; }
  [[nodiscard]] bool is_server() const noexcept { return std::string_view(name).starts_with("server"); }
  // Returns whether it failed and was not ended by the launcher, mpirun, or an agent.
  [[nodiscard]] bool is_own_failure() const noexcept { return !good() && end.why == "own"; }
  // Exit code 5: the process gave up because it lost another one.
  [[nodiscard]] bool lost_another() const noexcept {
    return !end.by_signal && end.code == static_cast<int>(ExitCode::communication);
  }
  // Exit code 130 or 143: it was asked to stop, saved its state and stopped.
  [[nodiscard]] bool stopped_in_order() const noexcept;
  // SIGINT or SIGTERM may also end a process that does not handle them.
  [[nodiscard]] bool ended_by_stop_signal() const noexcept {
    return end.by_signal && (end.code == SIGINT || end.code == SIGTERM);
  }
};

// Returns the launcher's exit code for the end of one process.
[[nodiscard]] int exit_code_for(const End& end);

// Everything that decides how a job ended.
struct JobEnd {
  // In the order in which the launcher received them. For an elastic job, those since the current generation began: its
  // members have replaced what was lost before.
  std::vector<ProcessExit> endings;
  bool elastic = false;
  int interrupted = 0;     // the signal by which the user ended the job, or 0
  int problem = 0;         // exit code of the first problem that the launcher found itself, or 0
  bool lost_host = false;  // the connection to a host broke
  int mpirun = 0;          // exit code for mpirun's failure; 0: it did not fail
};

struct JobResult {
  enum class Cause {
    done,         // all processes did their work
    problem,      // JobEnd::problem
    interrupted,  // by the user; what was done is saved
    process,      // `blamed` failed
    lost_host,    // processes lost others, and a host does not answer
    mpirun,       // mpirun failed, and no process did
    outside,      // `blamed` was ended by another program, or by an agent that was cut off
  };
  Cause cause = Cause::done;
  int code = 0;
  const ProcessExit* blamed = nullptr;  // one of JobEnd::endings
};

// Returns the process that caused the end. In this order: one that failed by itself (the first of them), one that
// stopped in order, one that gave up because it lost another, one that vanished, one that was orphaned. In an elastic
// job workers come before servers, unless the workers only lost a server. May return null.
[[nodiscard]] const ProcessExit* culprit(const JobEnd& job);

// Decides how the job ended.
[[nodiscard]] JobResult judge(const JobEnd& job);

}  // namespace tutti::launch
