// SPDX-License-Identifier: MIT
// Simulates jobs in which members join, leave and are lost: the real arbiter, channels, elastic strategy, all-reduce
// and communicator. A loop of sums replaces the training.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/strategy/elastic.hpp>
#include <tutti/strategy/parameter_server/server/serve_generations.hpp>

#include "interposed_files.hpp"
#include "interposed_threads.hpp"
#include "job.hpp"
#include "simulation.hpp"

namespace tutti::simulation {
namespace {

constexpr std::int64_t steps_an_epoch = 12, steps = 48, batch = 10;

// What the ranks train: the number of complete steps and the sum of the samples in them.
struct State {
  std::int64_t step = 0, samples = 0;
};

void take_state(Job& job, Worker& me, Elastic<MeshFactory>& strategy, State& state) {
  const std::int64_t before = state.step;
  job.entered(me, strategy.membership().generation);
  // As fit() does, a process without the state ends if all that had it are lost. The arbiter ends such a job itself.
  if (me.joins && !me.holds && strategy.members()->has_authority()) job.fail_without_state(me);
  State theirs = state;
  StateSpan span{"state", DType::i64, {2}, std::as_writable_bytes(std::span(&theirs, 1))};
  strategy.synchronise({&span, 1});
  state = theirs;
  if (state.step < before) job.scheduler().fail(me.process->name + " loses step " + std::to_string(before));
  me.holds = true;
}

// Does a step with the other ranks. Returns their sums: of the samples, and of the flags.
std::array<double, 3> step(Job& job, Worker& me, Elastic<MeshFactory>& strategy, const State& state) {
  ElasticMembership& members = *strategy.members();
  const Nanos asked = job.scheduler().now();
  if (!members.await_lease()) fail_without_lease();
  job.check_write(me, asked);
  if (const Nanos again = job.scheduler().now(); members.may_write()) job.check_write(me, again);
  for (const Nanos end = asked + std::exchange(me.asks, 0); job.scheduler().now() < end;) {
    job.compute();
    if (const Nanos again = job.scheduler().now(); members.may_write()) job.check_write(me, again);
  }
  if (std::exchange(me.signalled, false)) members.ask_to_leave();
  job.compute_step(me);
  using Change = ElasticMembership::Change;
  const Change change = members.change();
  const bool last = (state.step + 1) % steps_an_epoch == 0;
  std::array<double, 3> sums{0, members.stop_requested() ? 1.0 : 0.0,
                             change == Change::after_step || (change == Change::after_epoch && last) ? 1.0 : 0.0};
  for (std::int64_t i = strategy.rank(); i < batch; i += strategy.size())
    sums[0] += static_cast<double>(state.step * batch + i);
  strategy.sum(sums);
  return sums;
}

int serve(Job& job, Worker& me) {
  const auto channel = Job::channel(me);
  ps::serve_generations(*channel, Job::elastic_options(me),
                        [&](const Assignment& a, ControlChannel& c, InterruptFlag& flag) {
                          return std::make_unique<MeshServer>(job.meeting(), a, c, flag);
                        });
  return 0;
}

// [work]
// Runs in the process of each worker and server. Returns the exit code.
int work(Job& job, Worker& me) {
  if (me.role == control::Role::server) return serve(job, me);
  Elastic<MeshFactory> strategy(Job::channel(me), Job::elastic_options(me), MeshFactory{&job.meeting()});
  ElasticMembership& members = *strategy.members();
  // [/work]
  State state;
  const auto at_end = [&] { return state.step % steps_an_epoch == 0; };
  if (members.joining()) {
    job.load();  // a worker that joins loads its data before
    if (!members.next_generation({})) return 0;
  }
  for (;;) {
    try {
      take_state(job, me, strategy, state);
      while (state.step < steps) {
        const auto sums = step(job, me, strategy, state);
        job.reached(++state.step);
        state.samples += static_cast<std::int64_t>(sums[0]);
        if (sums[1] > 0) return static_cast<int>(ExitCode::terminated);
        if (sums[2] == 0 || state.step == steps) continue;
        if (!members.next_generation({static_cast<std::uint64_t>(state.step), false, at_end()})) return 0;
        take_state(job, me, strategy, state);
      }
      break;
    } catch (const CommunicationError&) {
      if (job.state_is_lost() || !members.await_lease()) throw;
      if (!members.next_generation({static_cast<std::uint64_t>(state.step), true, at_end()})) return 0;
    }
  }
  const std::int64_t all = steps * batch;
  if (state.samples != all * (all - 1) / 2)
    job.scheduler().fail(me.process->name + " has counted samples that sum to " + std::to_string(state.samples));
  return 0;
}

}  // namespace
}  // namespace tutti::simulation

// [main]
int main(int argc, char** argv) {
  using namespace tutti::simulation;
  return run_schedules(
      argc, argv, [](Simulation& s) { (void)Job(s, true, work, steps, steps_an_epoch).run(); }, FaultLists::count());
}
// [/main]
