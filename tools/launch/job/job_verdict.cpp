// SPDX-License-Identifier: MIT
#include "tools/launch/job/job_verdict.hpp"

#include <signal.h>

#include <algorithm>

namespace tutti::launch {

bool ProcessExit::stopped_in_order() const noexcept {
  return !end.by_signal &&
         (end.code == static_cast<int>(ExitCode::interrupted) || end.code == static_cast<int>(ExitCode::terminated));
}

int exit_code_for(const End& end) {
  if (end.why == "ended") return static_cast<int>(ExitCode::terminated);
  if (end.why != "own") return static_cast<int>(ExitCode::communication);
  if (!end.by_signal) return end.code;
  for (const int crash : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP})
    if (end.code == crash) return static_cast<int>(ExitCode::internal);
  return static_cast<int>(ExitCode::communication);
}

namespace {

// Returns whether a worker finished the work of an elastic job. If so, failures of other processes do not matter.
[[nodiscard]] bool work_is_done(const JobEnd& job) {
  return job.elastic && std::any_of(job.endings.begin(), job.endings.end(),
                                    [](const ProcessExit& e) { return e.did_work && e.good(); });
}

}  // namespace

const ProcessExit* culprit(const JobEnd& job) {
  enum Rank { failed, killed, stopped, server_failed, lost, vanished, orphaned, none };
  const bool done = work_is_done(job);
  const auto rank_of = [&](const ProcessExit& e) {
    if (e.good()) return none;
    const bool in_order = e.stopped_in_order() || (job.interrupted != 0 && e.ended_by_stop_signal());
    // After the work is done, a process counts only if it failed by itself: rank 0 exits with 3 if it cannot save.
    if (done && (e.is_server() || e.end.why != "own" || e.end.by_signal || e.lost_another() || in_order)) return none;
    if (e.end.why == "vanished") return vanished;
    if (e.end.why == "orphaned") return orphaned;
    if (e.end.why != "own") return none;
    if (e.lost_another()) return lost;
    if (job.elastic && e.is_server()) return server_failed;
    if (in_order) return stopped;
    // The others continue without a worker that was killed, so it did not end the job if another one failed by itself.
    return job.elastic && e.end.by_signal && exit_code_for(e.end) == static_cast<int>(ExitCode::communication) ? killed
                                                                                                               : failed;
  };
  const ProcessExit* first = nullptr;
  for (const ProcessExit& e : job.endings)
    if (rank_of(e) != none && (first == nullptr || rank_of(e) < rank_of(*first))) first = &e;
  return first;
}

JobResult judge(const JobEnd& job) {
  using Cause = JobResult::Cause;
  if (job.problem != 0) return {Cause::problem, job.problem};
  if (job.loss != 0 && !work_is_done(job)) return {Cause::problem, job.loss};
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
