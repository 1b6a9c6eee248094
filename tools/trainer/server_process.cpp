// SPDX-License-Identifier: MIT
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <tutti/backends/make.hpp>
#include <tutti/cluster/launch/server_process.hpp>
#include <tutti/io/file.hpp>
#include <tutti/strategy/parameter_server/server/server_state.hpp>
#include <tutti/train/server_snapshots.hpp>
#include <tutti/train/server_weights.hpp>

#include "tools/trainer/agreement.hpp"
#include "tools/trainer/backend_of_run.hpp"
#include "tools/trainer/job_process.hpp"
#include "tools/trainer/recipe.hpp"
#include "tools/trainer/scripted_options.hpp"
#include "tools/trainer/start.hpp"

namespace tutti::trainer {

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
    // Loads net, options and data as the workers do, so that it can refuse a worker with different ones.
    const Loaded loaded = load(o, task);
    const std::int64_t images = loaded.images.train.size();
    TrainerOptions t = trainer_options(o, images);
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

}  // namespace tutti::trainer
