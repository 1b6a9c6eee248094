// SPDX-License-Identifier: MIT
#include "tools/trainer/training_main.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/make/backend.hpp>
#include <tutti/backends/make/strategy.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/exit_code_of.hpp>
#include <tutti/core/threads/threads.hpp>

#include "tools/trainer/backend_of_run.hpp"
#include "tools/trainer/check.hpp"
#include "tools/trainer/check_batch.hpp"
#include "tools/trainer/check_strategy_options.hpp"
#include "tools/trainer/cli.hpp"
#include "tools/trainer/elastic_member.hpp"
#include "tools/trainer/environment.hpp"
#include "tools/trainer/evaluator.hpp"
#include "tools/trainer/job_process.hpp"
#include "tools/trainer/run_handoff.hpp"
#include "tools/trainer/scripted.hpp"
#include "tools/trainer/scripted_options.hpp"
#include "tools/trainer/start.hpp"
#include "tools/trainer/trace.hpp"

namespace tutti::trainer {

namespace {

// Returns the Horovod variables of the environment, without HOROVOD_, in alphabetical order.
std::vector<std::pair<std::string, std::string>> horovod_variables() {
  constexpr std::string_view begin = "HOROVOD_";
  std::vector<std::pair<std::string, std::string>> found;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry(*e);
    const std::size_t equals = entry.find('=');
    if (entry.starts_with(begin) && equals != entry.npos)
      found.emplace_back(entry.substr(begin.size(), equals - begin.size()), entry.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Returns the names of all variables of the environment, in alphabetical order.
std::vector<std::string> names_of_variables() {
  std::vector<std::string> names;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry(*e);
    names.emplace_back(entry.substr(0, entry.find('=')));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Evaluates in a single process.
int evaluate_elsewhere(const RunOptions& o, const Task& task) {
  const LaunchEnvironment start = read_launch_environment();
  if (start.launched && start.size > 1)
    fail<UsageError>("--checkpoint-dir", "one process, because an evaluation uses no others",
                     std::to_string(start.size));
  const TraceOfRun trace(o, {start, {}});
  return evaluate_concurrently(o, task, [&](RunOptions& checked) {
    naming_variables(checked, [&] { check(checked, {1, built_strategies(), has_gpu(checked, {start, {}})}); });
    if (checked.threads == 0) checked.threads = usable_cores();
    BackendOptions as = backend_options(checked);
    as.gpu = checked.backend == "cuda";
    return make_backend(checked.backend, as);
  });
}

int train(RunOptions& o, const Task& task) {
  if (evaluates_beside(o)) return evaluate_elsewhere(o, task);
  Started start;
  naming_variables(o, [&] { start = how_started(o); });
  const bool schedules = start.is_scheduler() && start.scripted;
  if (!start.is_server() && !schedules) require_worker(start);
  detail::check_backend(o);
  const bool trains = !start.is_server() && !schedules, gpu = trains && has_gpu(o, start);
  Job job;
  o.founders = !trains ? start.workers : start.generation > 0 ? start.founders : start.size;
  if (!is_launcher_query()) job.channel = open_elastic_channel(start);
  if (start.new_worker && job.channel != nullptr) take_run(*job.channel, o);
  if (!start.kept.empty()) take_kept_run(o, start.kept);
  naming_variables(o, [&] {
    const StartedJob as{static_cast<int>(o.founders),
                        built_strategies(),
                        gpu,
                        start.servers,
                        start.elastic,
                        start.mpi,
                        is_built("cuda")};
    const RunOptions before = o;
    check(o, as);
    o.with_batch = [before, as](std::int64_t batch) {
      RunOptions with = before;
      if (batch > 0) with.batch_size = batch;
      check(with, as);
      return with;
    };
  });
  if (trains && start.local_rank == 0 && !is_launcher_query())
    for (const std::string& w : o.warnings) warn(w);
  const bool keeps = o.strategy == "ps_async" && o.ps_snapshot_seconds > 0;
  if (start.servers_restart && keeps && o.run_dir.empty())
    fail<UsageError>("--run-dir", "a folder, in which servers that are started again find their saved state", "none");
  if (start.scripted && !has_servers(o.strategy))
    fail<UsageError>("--strategy", "ps or ps_async, because the job has servers", o.strategy,
                     "dist_sync and dist_async are other names of these");
  if (schedules) return schedule(o, start);
  if (is_launcher_query())
    return answer_launcher_query({o.strategy, o.strategy == "mpi", has_servers(o.strategy), keeps,
                                  changes_members(o.strategy), o.strategy == "ps_async"});
  if (!start.servers_restart && o.ps_snapshot_seconds != RunOptions().ps_snapshot_seconds)
    o.notes.push_back("no effect: --ps-snapshot-seconds, because servers are not started again");
  const TraceOfRun trace(o, start);
  if (start.is_server()) {
    if (!has_servers(o.strategy)) require_worker(start);
    if (o.threads == 0) o.threads = std::max(1, usable_cores() / start.local_size);
    return serve(o, task, start, job);
  }
  apply_horovod_variables(o, horovod_variables(), start.size);
  note_ps_variables(o, names_of_variables());
  // The ranks of one host share the cores of the host.
  if (o.threads == 0) o.threads = std::max(1, usable_cores() / start.local_size);
  return run_rank(o, task, start, job);
}

}  // namespace

int training_main(int argc, char** argv, Program program, const Task& task) {
  return exit_code_of(name_of(program), [&] {
    auto options = parse_command_line(argc, argv, program);
    return options ? train(*options, task) : 0;
  });
}

}  // namespace tutti::trainer
