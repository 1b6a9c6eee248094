// SPDX-License-Identifier: MIT
#include "tools/trainer/trace.hpp"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>

#include <tutti/graph/summary.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/trace/trace_merge.hpp>
#include <tutti/io/trace/trace_recorder.hpp>

#include "tools/trainer/trace_window.hpp"

namespace tutti::trainer {

namespace {

io::TraceRecorder* recorder = nullptr;
io::Path whole_file;  // file of the whole job; empty: the job has one process

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns a text that is the same in all processes of a job, and differs between jobs.
std::string name_of_job(const Started& start) {
  if (!start.job.empty()) return start.job;
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
    if (std::string job = variable(name); !job.empty()) return job;
  const std::string slurm = variable("SLURM_JOB_ID");
  return slurm.empty() ? "" : slurm + "." + variable("SLURM_STEP_ID");
}

void merge() {
  const auto merged = io::merge_traces(whole_file, recorder->options().job);
  if (!merged) return;  // another process still writes, and will merge the files
  for (const auto& c : merged->complaints) std::fprintf(stderr, "warning: %s\n", c.c_str());
  std::printf("timeline of %d %s in %s, %s\n", merged->processes, merged->processes == 1 ? "process" : "processes",
              whole_file.c_str(), format_bytes(static_cast<double>(merged->bytes)).c_str());
}

}  // namespace

TraceOfRun::TraceOfRun(const RunOptions& o, const Started& start) {
  if (o.trace.empty()) return;
  const TraceWindow window = trace_window(o);
  const bool alone = !start.launched && !start.scripted;
  io::TraceOptions t;
  t.file = o.trace;
  t.process = start.rank;
  t.name = (start.is_server() ? "server " : "rank ") + std::to_string(start.rank);
  std::string process = (start.is_server() ? "server" : "rank") + std::to_string(start.rank);
  if (start.is_server()) t.process += start.workers;
  if (!start.numbered) {
    t.process = ::getpid();
    t.name = start.role + " of process " + std::to_string(t.process);
    process = (start.is_server() ? "server-" : "rank-") + std::to_string(t.process);
  }
  if (start.generation > 0) process += "-generation" + std::to_string(start.generation);
  t.name += " on " + io::detail::host_name();
  t.first_step = window.first;
  t.last_step = window.last;
  // A window that the user has named is recorded with all details.
  if (window.last > 0) t.most_details = 1'000'000;
  t.complain = [](const std::string& w) { std::fprintf(stderr, "warning: %s\n", w.c_str()); };
  io::make_directories(io::folder_of(t.file));
  if (!alone) {
    t.job = name_of_job(start);
    whole_file = t.file;
    t.file = io::trace_part(t.file, process);
  }
  recorder = &io::TraceRecorder::start(std::move(t));
}

TraceOfRun::~TraceOfRun() {
  if (recorder == nullptr) return;
  recorder->close();
  const auto& own = recorder->options();
  try {
    if (const auto last = recorder->details_end_at(); last > 0)
      std::fprintf(stderr,
                   "warning: the timeline has the layers and images of steps up to %lld, %lld spans; use --trace-steps "
                   "to choose the steps\n",
                   static_cast<long long>(last), static_cast<long long>(own.most_details));
    if (recorder->lost() > 0)
      std::fprintf(stderr, "warning: the timeline lacks %lld spans, because it is full\n",
                   static_cast<long long>(recorder->lost()));
    if (whole_file.empty())
      std::printf("timeline in %s\n", own.file.c_str());
    else
      merge();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "warning: the timelines of the job's processes were not merged: %s\n", e.what());
  }
  std::fflush(stdout);
}

void TraceOfRun::flush() noexcept {
  if (recorder != nullptr) recorder->flush();
}

}  // namespace tutti::trainer
