// SPDX-License-Identifier: MIT
#include "tools/trainer/training_main.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/cluster/launch/server_process.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/exit_code_of.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/io/file.hpp>
#include <tutti/strategy/parameter_server/server/server_state.hpp>
#include <tutti/train/server_snapshots.hpp>
#include <tutti/train/server_weights.hpp>
#include "tools/trainer/agreement.hpp"
#include "tools/trainer/check.hpp"
#include "tools/trainer/check_batch.hpp"
#include "tools/trainer/check_strategy_options.hpp"
#include "tools/trainer/cli.hpp"
#include "tools/trainer/elastic_member.hpp"
#include "tools/trainer/environment.hpp"
#include "tools/trainer/evaluator.hpp"
#include "tools/trainer/program.hpp"
#include "tools/trainer/recipe.hpp"
#include "tools/trainer/run_handoff.hpp"
#include "tools/trainer/scripted.hpp"
#include "tools/trainer/scripted_options.hpp"
#include "tools/trainer/start.hpp"
#include "tools/trainer/trace.hpp"

namespace tutti::trainer {

namespace {

StrategyOptions strategy_options(const RunOptions& o, const Started& start) {
  StrategyOptions as;
  as.job = start.scripted ? &*start.scripted : nullptr;
  as.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(o.comm_deadline * 1000));
  as.shared_memory = o.shared_memory;
  as.hierarchical = o.hierarchical;
  as.bf16_wire = o.comm_wire == "bf16";
  as.ps_plain = o.ps_plain;
  as.threshold = detail::gradient_threshold(o);
  as.where = "--strategy";
  as.goes_on_from_checkpoint = true;
  return as;
}

struct Job {
  Backend* gpu = nullptr;                   // of this process; needed by strategy nccl
  std::shared_ptr<ControlChannel> channel;  // of an elastic job
};

// An error on this rank ends the other ranks too.
template <class F>
int with_strategy(RunOptions& o, const Task& task, const Started& start, const Job& job, F&& f) {
  StrategyOptions as = strategy_options(o, start);
  as.backend = job.gpu;
  as.channel = job.channel;
  // If the processes have a channel, a process with other data or options is refused before any work is done.
  std::optional<Loaded> loaded;
  if (has_servers(o.strategy) || job.channel != nullptr) {
    if (works(o)) loaded = load(o, task);
    as.facts = loaded ? facts(o, loaded->images) : facts(o);
  }
  LaunchEnvironment founded = start;
  if (job.channel != nullptr) founded.size = static_cast<int>(o.founders);
  // Servers own weights if there are workers that train.
  const bool owned = works(o) || job.channel == nullptr || o.strategy != "ps_async";
  AnyStrategy strategy = make_strategy(owned ? o.strategy : "ps", as, founded);
  if (has_servers(o.strategy)) o.notes.push_back(strategy.name());
  try {
    return f(strategy, std::move(loaded));
  } catch (const Error& e) {
    // If members may change, the others continue without this process, unless they are restarted for each
    // generation.
    const ElasticMembership* const members = strategy.members();
    if (strategy.size() > 1 && (members == nullptr || members->restarts_processes())) {
      TraceOfRun::flush();
      strategy.abort(e.what(), static_cast<ExitCode>(e.exit_code()));
      if (has_servers(o.strategy)) throw;  // the process that gets the message prints it
      return e.exit_code();
    }
    throw;
  }
}

bool is_built(const std::string& backend) {
  const std::vector<std::string> built = built_backends();
  return std::find(built.begin(), built.end(), backend) != built.end();
}

// Returns the GPU of this process: the ranks of a host have one each.
int gpu_of(const RunOptions& o, const Started& start) {
  const std::vector<int> chosen = detail::gpu_numbers(o.gpus.value_or(""));
  const auto here = static_cast<std::size_t>(start.local_size);
  if (chosen.empty()) return start.local_rank;
  if (chosen.size() != here)
    fail<UsageError>(
        "--gpus", here == 1 ? "one GPU" : std::to_string(here) + " GPUs", *o.gpus,
        "each process has one GPU: tutti-launch --gpus starts one process for each GPU, and -n counts hosts");
  return chosen[static_cast<std::size_t>(start.local_rank)];
}

BackendOptions backend_options(const RunOptions& o) {
  BackendOptions as;
  as.threads = static_cast<int>(o.threads);
  as.tf32 = o.tf32;
  as.autotune = o.autotune;
  as.deterministic = o.deterministic;
  as.fusion = o.cuda_fusion;
  as.convolution = o.convolution;
  as.recompute = o.recompute;
  as.graph = o.cuda_graph;
  as.where = "--backend";
  return as;
}

int serve(RunOptions& o, const Task& task, const Started& start, const Job& job) {
  const std::string which = start.numbered ? "server " + std::to_string(start.rank) : "one of the servers,";
  std::printf("%s of %d, for %d %s\n", which.c_str(), start.servers, start.workers,
              start.workers == 1 ? "worker" : "workers");
  std::fflush(stdout);
  StrategyOptions as = strategy_options(o, start);
  as.channel = job.channel;
  std::unique_ptr<Backend> backend;
  std::optional<ServerWeights> weights;
  std::optional<ServerSnapshots> snapshots;
  std::optional<ps::ServerState> kept;
  // Without training, workers only connect and leave.
  const bool owns = o.strategy == "ps_async" && works(o);
  as.facts = facts(o);
  if (owns) {
    BackendOptions on = backend_options(o);
    on.gpu = false;
    // Servers use no GPU, even if the workers do.
    backend = make_backend(o.backend == "cuda" ? "auto" : o.backend, on);
    // Loads net, options and data as the workers do, so that a worker with other ones is refused.
    const Loaded loaded = load(o, task);
    const std::int64_t images = loaded.images.train.size();
    TrainerOptions t = trainer_options(o);
    t.must_agree = as.facts = facts(o, loaded.images);
    weights.emplace(*backend, make_model(o, loaded.seen, &loaded.images.train), t, fit_options(o, images),
                    ServedSteps{images, start.workers, start.elastic, epoch_end_of(o)});
    as.weights = &weights->store();
    as.ps_staleness = o.ps_staleness;
    if (start.servers_restart && o.ps_snapshot_seconds > 0) {
      const std::string name = "server-" + std::to_string(start.rank);
      snapshots.emplace(io::Path(o.run_dir) / "servers" / name, start.job, as.warn);
      kept = snapshots->newest();
      if (kept)
        std::printf("server %d goes on from step %lld of all workers\n", start.rank,
                    static_cast<long long>(kept->steps));
      std::fflush(stdout);
      as.ps_from = kept ? &*kept : nullptr;
      as.ps_keep = [&](ps::ServerState&& state) { snapshots->write(std::move(state)); };
      as.ps_keep_every = std::chrono::milliseconds(static_cast<std::int64_t>(o.ps_snapshot_seconds * 1000));
    }
  }
  return run_server_process([&](const std::function<bool()>& stop_requested) {
    serve_workers(owns ? "ps_async" : "ps", as, start, stop_requested);
    if (snapshots) snapshots->remove();
  });
}

int schedule(const RunOptions& o, const Started& start) {
  std::printf("scheduler at %s, for %s\n", start.scheduler.c_str(),
              start.scripted->terms(start.workers, start.servers).c_str());
  std::fflush(stdout);
  return run_server_process([&](const std::function<bool()>& stop_requested) {
    schedule_workers(o.strategy, strategy_options(o, start), start, stop_requested);
  });
}

// Returns whether --backend auto uses the GPU of this process.
bool has_gpu(const RunOptions& o, const Started& start) {
  if (o.backend != "auto" || detail::wants_no_gpu(o)) return false;
  const bool built = is_built("cuda");
  // Without the backend, check() refuses the GPUs that --gpus names.
  if (!built && o.gpus) return false;
  BackendOptions as = backend_options(o);
  if (built) as.device = gpu_of(o, start);
  // The process that trains prints the reason, not the one that only answers the launcher.
  if (is_launcher_query()) as.warn = nullptr;
  return automatic_backend(as) == "cuda";
}

int run_on_gpu(RunOptions& o, const Task& task, const Started& start, Job job) {
  const int there = count_gpus();
  if (o.strategy == "nccl" && start.local_size > there)
    fail<DeviceError>("--strategy nccl",
                      "a GPU for each of the " + std::to_string(start.local_size) + " processes on this host",
                      std::to_string(there),
                      "start fewer (slots= in the hosts file); nvidia-smi -L and CUDA_VISIBLE_DEVICES show the GPUs");
  BackendOptions as = backend_options(o);
  as.device = gpu_of(o, start);
  const std::unique_ptr<Backend> backend = make_backend("cuda", as);
  if (const std::string gpu = gpu_without_bf16(*backend); o.precision == "bf16" && !gpu.empty()) {
    if (!o.any_half)
      fail<UsageError>("--precision", "f16 or f32 on " + gpu + ", which has no bf16", "bf16", "use --precision f16");
    o.precision = "f16";
    if (o.loss_scale == "1") o.loss_scale = "dynamic";
    o.notes.push_back("--precision f16: " + gpu + " has no bf16");
  }
  job.gpu = backend.get();
  return with_strategy(o, task, start, job, [&](AnyStrategy& strategy, std::optional<Loaded> loaded) {
    return run(*backend, strategy, o, task, std::move(loaded), job.channel.get());
  });
}

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
    check(o, {static_cast<int>(o.founders), built_strategies(), gpu, start.servers, start.elastic, start.mpi,
              is_built("cuda")});
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
  // The ranks of one host share its cores.
  if (o.threads == 0) o.threads = std::max(1, usable_cores() / start.local_size);
  if (o.backend == "cuda" && is_built("cuda")) return run_on_gpu(o, task, start, job);
  return with_strategy(o, task, start, job, [&](AnyStrategy& strategy, std::optional<Loaded> loaded) {
    BackendOptions as = backend_options(o);
    as.gpu = false;
    const std::unique_ptr<Backend> backend = make_backend(o.backend, as);
    return run(*backend, strategy, o, task, std::move(loaded), job.channel.get());
  });
}

}  // namespace

int training_main(int argc, char** argv, Program program, const Task& task) {
  return exit_code_of(name_of(program), [&] {
    auto options = parse_command_line(argc, argv, program);
    return options ? train(*options, task) : 0;
  });
}

}  // namespace tutti::trainer
