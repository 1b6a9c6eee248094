// SPDX-License-Identifier: MIT
// Measures how well several ranks train together: tutti-launch -n N or mpirun -np N build/bench/scaling [options]. Each
// round trains for a time with gradients summed over the ranks, and for a time as N independent runs. The ratio of the
// two is the cost of distribution on this machine at this time. Prints one line of JSON.
//
//   --model resnet18|resnet20  --batch N (per rank)  --precision f32|bf16  --threads N (per rank)  --rounds N
//   --seconds S (of a round)  --bucket-mib N  --plain (no shared memory)  --trace FILE (for scaling/simulate.py)
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/backends/mpi/mpi.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/train/trainer.hpp>

using namespace tutti;

namespace {

struct Args {
  std::string model = "resnet18", precision = "f32", trace;
  int batch = 32, threads = 1, rounds = 3, bucket_mib = 16;
  double seconds = 5;
  bool plain = false;
};

Args parse(int argc, char** argv) {
  Args a;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--plain") {
      a.plain = true;
      continue;
    }
    if (i + 1 >= argc) fail<UsageError>("scaling", "a value after " + name, "no value");
    const std::string value = argv[++i];
    if (name == "--model")
      a.model = value;
    else if (name == "--precision")
      a.precision = value;
    else if (name == "--trace")
      a.trace = value;
    else if (name == "--batch")
      a.batch = std::atoi(value.c_str());
    else if (name == "--threads")
      a.threads = std::atoi(value.c_str());
    else if (name == "--rounds")
      a.rounds = std::atoi(value.c_str());
    else if (name == "--bucket-mib")
      a.bucket_mib = std::atoi(value.c_str());
    else if (name == "--seconds")
      a.seconds = std::atof(value.c_str());
    else
      fail<UsageError>("scaling", "an option of this program", name);
  }
  if (a.batch < 1 || a.threads < 1 || a.rounds < 1 || a.bucket_mib < 1 || !(a.seconds > 0))
    fail<UsageError>("scaling", "numbers above 0", "a smaller number");
  if ((a.model != "resnet18" && a.model != "resnet20") || (a.precision != "f32" && a.precision != "bf16"))
    fail<UsageError>("scaling", "--model resnet18|resnet20, --precision f32|bf16", a.model + ", " + a.precision);
  return a;
}

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
        loader(Synthetic({.size = std::int64_t{64} * a.batch * world}),
               {.placement = {std::int64_t{a.batch} * s.size(), s.size() == 1 ? 0 : rank, s.size()}, .seed = 1}) {
    trainer.trace(&step);
    loader.start({});
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

int measure(const Args& a) {
  const LaunchEnvironment start = read_launch_environment();
  if (is_launcher_query()) return answer_launcher_query({"mpi", true});
  require_worker(start);
  // MPI would treat each process as a separate job.
  if (!start.mpi) require_launched_size(start, "mpi", 1);
  MpiOptions how;
  how.shared_memory = !a.plain;
  MpiCommunicator comm(how);
  require_launched_size(start, "mpi", comm.size());
  const int rank = comm.rank(), world = comm.size();
  BackendOptions on;
  on.gpu = false;
  on.threads = a.threads;
  const std::unique_ptr<Backend> backend = make_backend("auto", on);
  AllReduce<MpiCommunicator> all_reduce(comm);
  Solo solo;
  Side<AllReduce<MpiCommunicator>> together(*backend, all_reduce, a, rank, world);
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
  std::vector<double> speed, speed_alone, ratio;
  for (int round = 0; round < a.rounds; ++round) {
    const auto timed = [&](auto& side) {
      comm.barrier(std::chrono::seconds(600));
      const Stopwatch watch;
      const std::int64_t before = side.images;
      side.run(steps);
      comm.barrier(std::chrono::seconds(600));
      return everyone(static_cast<double>(side.images - before)) / watch.seconds();
    };
    speed.push_back(timed(together));
    speed_alone.push_back(timed(alone));
    ratio.push_back(speed.back() / speed_alone.back());
  }
  const auto of = [&](auto&& f) { return everyone(median_of(together.traces, f)) / world; };
  const double exposed = of([](const StepTrace& t) { return t.waited; });
  const double step = of([](const StepTrace& t) { return t.end; });
  const double data = everyone(together.data_wait / static_cast<double>(together.traces.size())) / world;
  if (rank == 0) {
    std::printf(
        "{\"ranks\": %d, \"model\": \"%s\", \"batch\": %d, \"precision\": \"%s\", \"threads\": %d, "
        "\"images_per_second\": %.1f, \"unconnected\": %.1f, \"efficiency\": %.4f, \"step_ms\": %.2f, "
        "\"exposed_ms\": %.3f, \"data_wait_ms\": %.3f}\n",
        world, a.model.c_str(), a.batch, a.precision.c_str(), a.threads, median(speed), median(speed_alone),
        median(ratio), 1e3 * step, 1e3 * exposed, 1e3 * data);
    if (!a.trace.empty()) write_trace(a.trace, alone.traces, together.traces, a.batch);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return measure(parse(argc, argv));
  } catch (const Error& e) {
    std::fprintf(stderr, "scaling: %s\n", e.what());
    return e.exit_code();
  }
}
