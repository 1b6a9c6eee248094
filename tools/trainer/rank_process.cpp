// SPDX-License-Identifier: MIT
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <tutti/backends/make.hpp>
#include <tutti/core/error.hpp>

#include "tools/trainer/agreement.hpp"
#include "tools/trainer/backend_of_run.hpp"
#include "tools/trainer/check_strategy_options.hpp"
#include "tools/trainer/job_process.hpp"
#include "tools/trainer/program.hpp"
#include "tools/trainer/start.hpp"
#include "tools/trainer/trace.hpp"

namespace tutti::trainer {

StrategyOptions strategy_options(const RunOptions& o, const Started& start) {
  StrategyOptions as;
  as.job = start.scripted ? &*start.scripted : nullptr;
  as.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(o.comm_deadline * 1000));
  as.shared_memory = o.shared_memory;
  as.hierarchical = o.hierarchical;
  as.bf16_wire = o.comm_wire == "bf16";
  as.ps_plain = o.ps_plain;
  as.encrypt = o.encrypt == "on" ? Encryption::on : o.encrypt == "off" ? Encryption::off : Encryption::automatic;
  as.threshold = detail::gradient_threshold(o);
  as.where = "--strategy";
  as.goes_on_from_checkpoint = true;
  return as;
}

namespace {

// Makes the strategy and calls f with it. An error on this rank ends the other ranks too.
template <class F>
int with_strategy(RunOptions& o, const Task& task, const Started& start, const Job& job, F&& f) {
  StrategyOptions as = strategy_options(o, start);
  as.backend = job.gpu;
  as.channel = job.channel;
  // If the processes have a channel, a process with other data or options is refused before the work begins.
  std::optional<Loaded> loaded;
  if (has_servers(o.strategy) || job.channel != nullptr) {
    if (works(o)) loaded = load(o, task);
    as.facts = loaded ? facts(o, loaded->images) : facts(o);
  }
  LaunchEnvironment founded = start;
  if (job.channel != nullptr) founded.size = static_cast<int>(o.founders);
  // Servers own weights only if workers train.
  const bool owned = works(o) || job.channel == nullptr || o.strategy != "ps_async";
  AnyStrategy strategy = make_strategy(owned ? o.strategy : "ps", as, founded);
  if (has_servers(o.strategy) || strategy.name().find(", encrypted by ") != std::string::npos)
    o.notes.push_back(strategy.name());
  try {
    return f(strategy, std::move(loaded));
  } catch (const Error& e) {
    // If the members may change, the other processes continue without this process, unless they are restarted for each
    // generation.
    const ElasticMembership* const members = strategy.members();
    if (strategy.size() > 1 && (members == nullptr || members->restarts_processes())) {
      TraceOfRun::flush();
      strategy.abort(e.what(), static_cast<ExitCode>(e.exit_code()));
      if (has_servers(o.strategy)) throw;  // abort() told only the servers, so main() prints the error
      return e.exit_code();                // abort() has printed it
    }
    throw;
  }
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

}  // namespace

int run_rank(RunOptions& o, const Task& task, const Started& start, const Job& job) {
  if (o.backend == "cuda" && is_built("cuda")) return run_on_gpu(o, task, start, job);
  return with_strategy(o, task, start, job, [&](AnyStrategy& strategy, std::optional<Loaded> loaded) {
    BackendOptions as = backend_options(o);
    as.gpu = false;
    const std::unique_ptr<Backend> backend = make_backend(o.backend, as);
    return run(*backend, strategy, o, task, std::move(loaded), job.channel.get());
  });
}

}  // namespace tutti::trainer
