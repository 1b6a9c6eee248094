// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>

#include "rank_process.hpp"

// The exit code of a job: one function of how its processes ended, whether its work was done, and what the launcher
// found itself. It has no side effects; running_job.hpp says what it decides.
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
  // Not ended by the launcher, mpirun, or an agent.
  [[nodiscard]] bool is_own_failure() const noexcept { return !good() && end.why == "own"; }
  // Exit code 5: the process gave up because it lost another one.
  [[nodiscard]] bool lost_another() const noexcept {
    return !end.by_signal && end.code == static_cast<int>(ExitCode::communication);
  }
  // Exit code 130 or 143: it was told to stop, saved its state and stopped.
  [[nodiscard]] bool stopped_in_order() const noexcept {
    return !end.by_signal &&
           (end.code == static_cast<int>(ExitCode::interrupted) || end.code == static_cast<int>(ExitCode::terminated));
  }
  // SIGINT or SIGTERM may also end a process that does not handle them.
  [[nodiscard]] bool ended_by_stop_signal() const noexcept {
    return end.by_signal && (end.code == SIGINT || end.code == SIGTERM);
  }
};

// The launcher's exit code for the end of one process.
[[nodiscard]] inline int exit_code_for(const End& end) {
  if (end.why == "ended") return static_cast<int>(ExitCode::terminated);
  if (end.why != "own") return static_cast<int>(ExitCode::communication);
  if (!end.by_signal) return end.code;
  for (const int crash : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP})
    if (end.code == crash) return static_cast<int>(ExitCode::internal);
  return static_cast<int>(ExitCode::communication);
}

// Everything that decides how a job ended.
struct JobEnd {
  // In the order in which the launcher heard of them; of an elastic job those since its members stood last, because the
  // members make good what was lost before.
  std::vector<ProcessExit> endings;
  bool elastic = false;
  int interrupted = 0;     // the signal by which the user ended the job; 0: none
  int problem = 0;         // exit code of the first problem that the launcher found itself; 0: none
  bool lost_host = false;  // the connection to a host broke
  int mpirun = 0;          // the code that mpirun's failure stands for; 0: it did not fail
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

// Whether a worker did the work of an elastic job to its end. Such a worker makes good what others left undone.
[[nodiscard]] inline bool work_is_done(const JobEnd& job) {
  return job.elastic && std::any_of(job.endings.begin(), job.endings.end(),
                                    [](const ProcessExit& e) { return e.did_work && e.good(); });
}

// The process that caused the end, in this order: one that failed by itself (the first of them), one that stopped in
// order, one that gave up because it lost another, one that vanished, one that was orphaned. In an elastic job workers
// come before servers, which only serve them, unless the workers just lost a server. Null if none.
[[nodiscard]] inline const ProcessExit* culprit(const JobEnd& job) {
  enum Rank { failed, stopped, server_failed, lost, vanished, orphaned, none };
  const bool done = work_is_done(job);
  const auto rank_of = [&](const ProcessExit& e) {
    if (e.good()) return none;
    const bool in_order = e.stopped_in_order() || (job.interrupted != 0 && e.ended_by_stop_signal());
    // What counts after the work is done is a failure with an exit code of its own: rank 0 ends with 3 if it cannot
    // save the result.
    if (done && (e.is_server() || e.end.why != "own" || e.end.by_signal || e.lost_another() || in_order)) return none;
    if (e.end.why == "vanished") return vanished;
    if (e.end.why == "orphaned") return orphaned;
    if (e.end.why != "own") return none;
    if (e.lost_another()) return lost;
    if (job.elastic && e.is_server()) return server_failed;
    return in_order ? stopped : failed;
  };
  const ProcessExit* first = nullptr;
  for (const ProcessExit& e : job.endings)
    if (rank_of(e) != none && (first == nullptr || rank_of(e) < rank_of(*first))) first = &e;
  return first;
}

// Decides how the job ended.
[[nodiscard]] inline JobResult judge(const JobEnd& job) {
  using Cause = JobResult::Cause;
  if (job.problem != 0) return {Cause::problem, job.problem};
  const ProcessExit* blamed = culprit(job);
  if (blamed == nullptr && work_is_done(job)) return {};

  const bool own = blamed != nullptr && blamed->end.why == "own";
  if (blamed != nullptr && job.lost_host && (!own || blamed->lost_another()))
    return {Cause::lost_host, static_cast<int>(ExitCode::communication)};
  if (job.interrupted != 0 && (!own || blamed->stopped_in_order() || blamed->ended_by_stop_signal()))
    return {Cause::interrupted, 128 + (job.interrupted == SIGINT ? SIGINT : SIGTERM)};
  if (blamed != nullptr) return {Cause::process, exit_code_for(blamed->end), blamed};
  if (job.mpirun != 0) return {Cause::mpirun, job.mpirun};
  for (const char* why : {"unheard", "ended"})
    for (const ProcessExit& e : job.endings)
      if (e.end.why == why) return {Cause::outside, exit_code_for(e.end), &e};
  return {};
}

}  // namespace tutti::launch
