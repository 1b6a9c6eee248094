// SPDX-License-Identifier: MIT
#include "tools/launch/resolve_options.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

#include "tools/launch/program_query.hpp"

namespace tutti::launch {

void resolve_launcher(Options& o, Plan& plan, const SignalQueue& signals, JobOutput& output) {
  const ProgramQuery asked = query_program(plan, o, signals);
  require_answer(asked, plan);
  if (asked.code < 0) output.say("warning: " + printable(o.command[0]) + " did not answer the query how to start it");
  const int workers = plan.first().order.workers;
  if (o.elastic.on && asked.answer && !asked.answer->elastic)
    fail<UsageError>("--elastic", "a strategy that lets workers join and leave",
                     printable(o.command.at(0)) + " with strategy " + asked.answer->strategy,
                     asked.answer->strategy == "gloo" ? "use a build with Gloo" : "use --strategy gloo");
  const bool holds = asked.answer && asked.answer->servers_hold;
  if (o.elastic.on && holds && o.server_restarts > 0)
    fail<UsageError>("--server-restarts", "0 with --elastic, because workers may be lost and servers may not",
                     std::to_string(o.server_restarts), "use --resume to continue after the loss of a server");
  if (o.elastic.on && holds && o.elastic.at_given && o.elastic.at_epoch)
    fail<UsageError>("--elastic-at",
                     "step, because no worker of " + asked.answer->strategy + " waits for another worker", "epoch",
                     "leave the option out: workers join and leave between two of their steps");
  if (o.elastic.on && workers < o.elastic.min_workers)
    fail<UsageError>("--min-workers", "at most the number of workers at the start, " + std::to_string(workers),
                     std::to_string(o.elastic.min_workers));
  if (o.elastic.on && workers > o.elastic.max_workers.value_or(workers))
    fail<UsageError>("--max-workers", "at least the number of workers at the start, " + std::to_string(workers),
                     std::to_string(*o.elastic.max_workers));
  if (o.elastic.on && o.launcher == "mpi" && !(asked.answer && asked.answer->over_mpi))
    fail<UsageError>("--launcher",
                     "local or ssh, because it is not known that " + printable(o.command.at(0)) +
                         " trains over MPI, in one mpirun after the other",
                     "mpi", "leave --launcher out, and let the program's --strategy decide");
  const int servers = servers_for(o, asked.answer, workers);
  if (plan.first().order.servers != servers) add_servers(plan);
  o.servers_hold = holds;
  if (holds) o.elastic.at_epoch = false;
  o.elastic.only_here = o.launcher == "local";
  if (o.launcher != "mpi") o.launcher = launcher_for(o, asked.answer, static_cast<std::size_t>(workers));
  for (auto& s : plan.sites) {
    s.order.through_mpi = o.launcher == "mpi";
    if (!s.order.through_mpi || !o.elastic.on) continue;
    s.order.generation = 1;
    s.order.founders = workers;
    // An agent that is disconnected must end its processes before the other workers continue without them.
    s.order.host_timeout = 0.75 * std::min(o.host_timeout, o.rank_timeout);
  }
}

std::optional<StallProblem> stalled_problem(ProgressBoard& board, const Options& o, JobOutput& output) {
  const auto now = Clock::now();
  if (const auto stall = board.new_stall(o.stall_warning, now)) output.say("warning: " + board.describe(*stall));
  const auto stall = o.stall_deadline > 0 ? board.stalled(o.stall_deadline, now) : std::nullopt;
  if (!stall) return {};
  return StallProblem{stall->entry->name,
                      {static_cast<int>(ExitCode::communication),
                       error_message(stall->entry->name + " on " + stall->entry->host,
                                     "progress within " + seconds_text(o.stall_deadline), board.describe(*stall),
                                     "set a longer time with --stall-deadline")}};
}

}  // namespace tutti::launch
