// SPDX-License-Identifier: MIT
#pragma once

// Definitions of fit_job.hpp.

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/run_main.hpp>
#include <tutti/train/detail/fit/fit_job_checks.hpp>
#include <tutti/train/detail/fit/fit_job_run.hpp>
#include <tutti/train/fit_job.hpp>
#include <tutti/train/server_weights.hpp>
#include <tutti/train/signals.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION EpochReport fit(TrainingJob& job, const Builder& net, const FitRecipe& recipe) {
  detail::check_recipe(recipe);
  const Graph graph = detail::graph_of(net.graph(), recipe);
  detail::check_net(graph, recipe.train.schema());
  // Loads the data before the processes connect, and before this one joins a running job: loading may be slow.
  const detail::FitImages images = detail::images_of(recipe, job);
  const TrainerOptions options = detail::trainer_options_of(recipe, detail::facts_of(recipe, images));
  const FitOptions how = detail::fit_options_of(recipe);
  JoinOptions join;
  join.facts = options.must_agree;
  join.make_weights = server_weights(job.backend(), graph, options, how, images.train.size());
  AnyStrategy& strategy = job.join(join);
  const StopSignals signals;
  try {
    detail::JobRun run(job, strategy, graph, recipe, images, options, how);
    return run.train();
  } catch (const RunEnded&) {
    throw;
  } catch (const Error& e) {
    // If the members may change, the other processes continue without this one, unless all of them are restarted.
    const ElasticMembership* const members = strategy.members();
    if (strategy.size() == 1 || (members != nullptr && !members->restarts_processes())) throw;
    strategy.abort(e.what(), static_cast<ExitCode>(e.exit_code()));
    if (job.has_servers()) throw;
    throw RunEnded(e.what(), e.exit_code());  // abort() has printed the message
  }
}

}  // namespace tutti
