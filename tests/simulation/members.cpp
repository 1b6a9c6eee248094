// SPDX-License-Identifier: MIT
// Simulates jobs in which members join, leave and are lost: the real arbiter, channels, elastic strategy, all-reduce
// and communicator. A loop of sums replaces the training.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <tutti/strategy/elastic.hpp>
#include <tutti/strategy/parameter_server/server/serve_generations.hpp>

#include "elastic_loop.hpp"
#include "interposed_files.hpp"
#include "interposed_threads.hpp"
#include "job.hpp"
#include "simulation.hpp"

namespace tutti::simulation {
namespace {

constexpr std::int64_t steps_an_epoch = 12, steps = 48;

// Runs in the process of each worker. Job tells it of the faults that happen to it.
class Loop : public ElasticLoop<Worker> {
 public:
  Loop(Job& job, Worker& me, Elastic<MeshFactory>& strategy)
      : ElasticLoop(me, strategy, steps, steps_an_epoch), job_(job) {}

 protected:
  void load() override { job_.load(); }
  void entered() override { job_.entered(me_, strategy_.membership().generation); }
  // As fit() does, a process without the state ends if all that had it are lost. The arbiter ends such a job itself.
  void lack_state() override { job_.fail_without_state(me_); }
  void may_write(Nanos asked) override {
    job_.check_write(me_, asked);
    if (const Nanos again = job_.scheduler().now(); members_.may_write()) job_.check_write(me_, again);
    for (const Nanos end = asked + std::exchange(me_.asks, 0); job_.scheduler().now() < end;) {
      job_.compute();
      if (const Nanos again = job_.scheduler().now(); members_.may_write()) job_.check_write(me_, again);
    }
  }
  void compute(std::int64_t /*step*/) override { job_.compute_step(me_); }
  void reached(std::int64_t step) override { job_.reached(step); }
  [[nodiscard]] bool gives_up() override { return job_.state_is_lost(); }

 private:
  Job& job_;
};

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
  return Loop(job, me, strategy).run();
}
// [/work]

}  // namespace
}  // namespace tutti::simulation

// [main]
int main(int argc, char** argv) {
  using namespace tutti::simulation;
  return run_schedules(
      argc, argv, [](Simulation& s) { (void)Job(s, true, work, steps, steps_an_epoch).run(); }, FaultLists::count());
}
// [/main]
