// SPDX-License-Identifier: MIT
// Measures how well several ranks train together: tutti-launch -n N or mpirun -np N build/bench/scaling [options]. Each
// round trains for a time with gradients summed over the ranks, and for a time as N independent runs. The ratio of the
// two is the cost of distribution on this machine at this time. Prints one line of JSON, with the times of a step:
//
//   compute_ms            a step of an unconnected rank          compute_cpu_ms  its processor time, all threads
//   step_ms               a step of a connected rank             step_cpu_ms     its processor time, all threads
//   exposed_ms            how long it waits for sums after the backward pass
//   communication_ms      how long sums run                      communication_cpu_ms  processor time of their thread
//   megabytes, gbytes_per_s: of the sums of a step
//
//   --model resnet18|resnet20  --batch N (per rank)  --precision f32|bf16  --threads N (per rank)  --rounds N
//   --seconds S (of a round)  --bucket-mib N  --plain (no shared memory)  --trace FILE (for scaling/simulate.py)
//   --strategy mpi|gloo (gloo: under tutti-launch)  --wire f32|bf16 (of gradients between processes without shared
//   memory)
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/make.hpp>
#ifdef TUTTI_HAS_MPI
#include <tutti/backends/mpi/mpi.hpp>
#endif
#ifdef TUTTI_HAS_GLOO
#include <tutti/backends/gloo/job.hpp>
#endif
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/train/trainer.hpp>

#include "scaling/arguments.hpp"
#include "scaling/counted.hpp"

using namespace tutti;
using namespace tutti::bench;

namespace {

Graph make_model(const std::string& name) {
  Builder b(3, 32, 32);
  const ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  if (name == "resnet20")
    models::resnet_cifar(b, x, {.depth = 20});
  else
    models::resnet(b, x, {.depth = 18, .classes = 10, .cifar_stem = true});
  return std::move(b).take();
}

// One way to train, and its measurements.
template <class S>
struct Side {
  Side(Backend& backend, S& s, const Args& a, int rank, int world)
      : strategy(s),
        trainer(backend, s, make_model(a.model), options(a)),
        loader(Synthetic({.size = std::int64_t{64} * a.batch * world}), loading(a, s, rank)) {
    trainer.trace(&step);
    loader.start({});
  }
  static LoaderOptions loading(const Args& a, const S& s, int rank) {
    LoaderOptions o;
    o.placement.global_batch = std::int64_t{a.batch} * s.size();
    o.placement.rank = s.size() == 1 ? 0 : rank;
    o.placement.world = s.size();
    o.seed = 1;
    return o;
  }
  static TrainerOptions options(const Args& a) {
    TrainerOptions o;
    o.compute = a.precision == "bf16" ? DType::bf16 : DType::f32;
    o.optimizer = Sgd{0.9, true};
    o.bucket_bytes = static_cast<std::size_t>(a.bucket_mib) << 20;
    return o;
  }
  void run(std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i) {
      const double waited = loader.seconds_waited();
      const Batch& batch = loader.next();
      data_wait += loader.seconds_waited() - waited;
      trainer.step(batch, 0.001);
      traces.push_back(step);
      images += batch.count;
    }
  }
  void forget() {
    images = 0;
    data_wait = 0;
    traces.clear();
  }

  S& strategy;
  Trainer trainer;
  Loader loader;
  StepTrace step;
  std::vector<StepTrace> traces;
  std::int64_t images = 0;
  double data_wait = 0;
};

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v.size() % 2 == 1 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

template <class F>
double median_of(const std::vector<StepTrace>& traces, F&& f) {
  std::vector<double> v;
  for (const StepTrace& t : traces) v.push_back(f(t));
  return median(std::move(v));
}

void write_trace(const std::string& path, const std::vector<StepTrace>& alone, const std::vector<StepTrace>& together,
                 int batch) {
  const double end = median_of(alone, [](const StepTrace& t) { return t.backward_end; });
  const double update = median_of(alone, [](const StepTrace& t) { return t.end - t.backward_end; });
  // Only steps with buckets record when each bucket becomes ready. Uses their share in the backward pass.
  const double end_together = median_of(together, [](const StepTrace& t) { return t.backward_end; });
  std::ofstream file(path);
  file << "{\"images\": " << batch << ", \"backward_end\": " << end << ", \"update\": " << update << ", \"buckets\": [";
  const std::size_t n = together.empty() ? 0 : together[0].buckets.size();
  for (std::size_t k = 0; k < n; ++k)
    file << (k == 0 ? "" : ", ") << "{\"bytes\": " << together[0].buckets[k].bytes << ", \"ready\": "
         << end / end_together * median_of(together, [k](const StepTrace& t) { return t.buckets[k].ready; }) << "}";
  file << "]}\n";
  if (!file.flush()) fail<DataError>("scaling", "a file to write", path);
}

// What the timed rounds of one way used, on all ranks.
struct Used {
  std::vector<double> images_per_second;
  double processor = 0;  // seconds, of this rank
  SumCosts sums;
};

template <class C>
int measure(const Args& a, C& comm) {
  const int rank = comm.rank(), world = comm.size();
  BackendOptions on;
  on.gpu = false;
  on.threads = a.threads;
  const std::unique_ptr<Backend> backend = make_backend("auto", on);
  AllReduce<C> all_reduce(comm);
  Solo solo;
  Side<AllReduce<C>> together(*backend, all_reduce, a, rank, world);
  Side<Solo> alone(*backend, solo, a, rank, world);
  const auto everyone = [&](double v) {
    all_reduce.sum({&v, 1});
    return v;
  };
  // All ranks run as many steps as the slowest rank can do in the time.
  const auto steps_for = [&](auto& side) {
    const Stopwatch watch;
    side.run(2);
    const double each = everyone(watch.seconds()) / world / 2;
    return std::max<std::int64_t>(2, static_cast<std::int64_t>(a.seconds / each));
  };
  steps_for(together);
  const std::int64_t steps = steps_for(alone);
  together.forget();
  alone.forget();
  Used used, used_alone;
  std::vector<double> ratio;
  for (int round = 0; round < a.rounds; ++round) {
    const auto timed = [&](auto& side, Used& u) {
      comm.barrier(std::chrono::seconds(600));
      const SumCosts sums = comm.engine().costs();
      const Stopwatch watch;
      const std::int64_t before = side.images;
      const double processor = processor_time(CLOCK_PROCESS_CPUTIME_ID);
      side.run(steps);
      u.processor += processor_time(CLOCK_PROCESS_CPUTIME_ID) - processor;
      comm.barrier(std::chrono::seconds(600));
      const double seconds = watch.seconds();
      const SumCosts& after = comm.engine().costs();
      u.sums.seconds += after.seconds - sums.seconds;
      u.sums.processor += after.processor - sums.processor;
      u.sums.bytes += after.bytes - sums.bytes;
      u.images_per_second.push_back(everyone(static_cast<double>(side.images - before)) / seconds);
    };
    timed(together, used);
    timed(alone, used_alone);
    ratio.push_back(used.images_per_second.back() / used_alone.images_per_second.back());
  }
  const double all_steps = static_cast<double>(steps) * a.rounds;
  const auto of = [&](auto& side, auto&& f) { return 1e3 * everyone(median_of(side.traces, f)) / world; };
  const auto of_step = [&](double v) { return everyone(v) / world / all_steps; };
  const double exposed = of(together, [](const StepTrace& t) { return t.waited; });
  const double step = of(together, [](const StepTrace& t) { return t.end; });
  const double compute = of(alone, [](const StepTrace& t) { return t.end; });
  const double data = 1e3 * of_step(together.data_wait), cpu = 1e3 * of_step(used.processor);
  const double compute_cpu = 1e3 * of_step(used_alone.processor), sums = 1e3 * of_step(used.sums.seconds);
  const double sums_cpu = 1e3 * of_step(used.sums.processor), megabytes = of_step(used.sums.bytes) / 1e6;
  if (rank == 0) {
    std::printf(
        "{\"ranks\": %d, \"model\": \"%s\", \"batch\": %d, \"precision\": \"%s\", \"threads\": %d, \"communicator\": "
        "\"%s\", "
        "\"wire\": \"%s\", \"images_per_second\": %.1f, \"unconnected\": %.1f, \"efficiency\": %.4f, \"step_ms\": "
        "%.2f, "
        "\"compute_ms\": %.2f, \"exposed_ms\": %.3f, \"communication_ms\": %.2f, \"communication_cpu_ms\": %.2f, "
        "\"step_cpu_ms\": %.2f, \"compute_cpu_ms\": %.2f, \"megabytes\": %.2f, \"gbytes_per_s\": %.3f, "
        "\"data_wait_ms\": %.3f}\n",
        world, a.model.c_str(), a.batch, a.precision.c_str(), a.threads, comm.name().c_str(), a.wire.c_str(),
        median(used.images_per_second), median(used_alone.images_per_second), median(ratio), step, compute, exposed,
        sums, sums_cpu, cpu, compute_cpu, megabytes, sums > 0 ? megabytes / sums : 0, data);
    if (!a.trace.empty()) write_trace(a.trace, alone.traces, together.traces, a.batch);
  }
  return 0;
}

int over_mpi(const Args& a, const LaunchEnvironment& start) {
#ifdef TUTTI_HAS_MPI
  // MPI would treat each process as a separate job.
  if (!start.mpi) require_launched_size(start, "mpi", 1);
  MpiOptions how;
  how.shared_memory = !a.plain;
  how.wire = a.wire_type();
  CountedCommunicator<MpiEngine> comm(how.deadline, how, MpiSession::open());
  require_launched_size(start, "mpi", comm.size());
  return measure(a, comm);
#else
  static_cast<void>(a), static_cast<void>(start);
  fail<UsageError>("--strategy", "a build with MPI", "a build without it", "install libopenmpi-dev and build again");
#endif
}

int over_gloo(const Args& a, const LaunchEnvironment& start) {
#ifdef TUTTI_HAS_GLOO
  const auto channel = ControlChannel::open();
  if (channel == nullptr)
    fail<UsageError>("--strategy gloo", "tutti-launch, which provides the channel between the processes",
                     "another launcher", "tutti-launch -n 2 scaling --strategy gloo");
  ChannelStore store(*channel);
  InterruptFlag flag;
  GlooJobOptions how;
  how.shared_memory = !a.plain;
  how.wire = a.wire_type();
  const GlooOptions job = gloo_options(channel->enrol(start, JobFacts{}, how.rendezvous_timeout), how);
  CountedCommunicator<GlooEngine> comm(job.deadline, job, store, flag);
  return measure(a, comm);
#else
  static_cast<void>(a), static_cast<void>(start);
  fail<UsageError>("--strategy", "a build with Gloo", "a build without it", "install libgloo-dev and build again");
#endif
}

int run(const Args& a) {
  const LaunchEnvironment start = read_launch_environment();
  if (is_launcher_query()) return answer_launcher_query({a.strategy, a.strategy == "mpi"});
  require_worker(start);
  return a.strategy == "mpi" ? over_mpi(a, start) : over_gloo(a, start);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const Error& e) {
    std::fprintf(stderr, "scaling: %s\n", e.what());
    return e.exit_code();
  }
}
