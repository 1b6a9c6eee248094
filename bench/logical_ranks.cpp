// SPDX-License-Identifier: MIT
// Measures what logical ranks cost: steps of a ResNet-18 for images of 32x32 pixels, the variants in alternating
// rounds. One process compares V logical ranks with a plain step of the same batch, with micro-batches, and with the
// bare compute of V small batches; several processes under mpirun or tutti-launch compare one logical rank for each
// process with plain ranks. Prints one line of JSON for each variant: median, smallest and largest milliseconds of a
// step, CPU time of all threads of rank 0 (for a busy machine), and a hash of the weights, which for V logical ranks is
// the same with any number of processes.
//
//   --batch N (of all processes, default 64)  --threads N (per process)  --precision f32|bf16  --rounds N  --steps N
//   (of a round)  --backend NAME
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/backends/mpi/mpi.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/xxh64.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/train/trainer.hpp>

using namespace tutti;

namespace {

struct Args {
  std::string backend = "auto", precision = "f32";
  int batch = 64, threads = 0, rounds = 7, steps = 5;
};

Args parse(int argc, char** argv) {
  Args a;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--backend")
      a.backend = value;
    else if (name == "--precision")
      a.precision = value;
    else if (name == "--batch")
      a.batch = std::atoi(value.c_str());
    else if (name == "--threads")
      a.threads = std::atoi(value.c_str());
    else if (name == "--rounds")
      a.rounds = std::atoi(value.c_str());
    else if (name == "--steps")
      a.steps = std::atoi(value.c_str());
    else
      fail<UsageError>("logical_ranks", "an option of this program", name);
  }
  if (a.batch < 8 || a.threads < 0 || a.rounds < 1 || a.steps < 1 || argc % 2 == 0)
    fail<UsageError>("logical_ranks", "pairs of options and numbers above 0, a batch of 8 or more", "others");
  return a;
}

Graph resnet18() {
  Builder b(3, 32, 32);
  const ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  models::resnet(b, x, {.depth = 18, .classes = 10, .cifar_stem = true});
  return std::move(b).take();
}

// The rows of all processes.
struct Rows {
  explicit Rows(std::int64_t n) : images(static_cast<std::size_t>(n * 3072)), labels(static_cast<std::size_t>(n)) {
    Rng rng(1, Purpose::synthetic);
    for (auto& i : images) i = static_cast<std::uint8_t>(rng.below(256));
    for (auto& l : labels) l = static_cast<std::int32_t>(rng.below(10));
  }
  [[nodiscard]] BatchView view(Part p) const {
    return {images.data() + p.begin * 3072, labels.data() + p.begin, p.count};
  }
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
};

// One way to run a step, and its times.
struct Way {
  std::string name;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Trainer> trainer;
  std::vector<BatchView> parts;
  bool updates = true;
  std::vector<double> ms{}, cpu_ms{};

  void run(int steps, std::int64_t batch) {
    for (int i = 0; i < steps; ++i) {
      if (updates)
        trainer->step(parts, batch, 0.001).wait();
      else
        for (const BatchView& p : parts) trainer->executor().train(p, {1, 1.0 / static_cast<double>(batch)});
    }
  }
};

// Returns the seconds of CPU time of this process.
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

int measure(const Args& a) {
  const LaunchEnvironment start = read_launch_environment();
  if (is_launcher_query()) return answer_launcher_query({"mpi", true});
  require_worker(start);
  if (!start.mpi) require_launched_size(start, "mpi", 1);
  MpiCommunicator comm;
  AllReduce<MpiCommunicator> strategy(comm);
  Solo solo;
  const int rank = comm.rank(), world = comm.size();
  const Rows rows(a.batch);
  std::vector<std::unique_ptr<Way>> ways;
  // Cuts this process's share into equal parts.
  const auto add = [&](std::string name, int logical_ranks, int parts, bool updates = true) {
    BackendOptions on;
    on.gpu = false;
    on.threads = a.threads;
    auto w = std::make_unique<Way>(Way{std::move(name), make_backend(a.backend, on), nullptr, {}, updates});
    TrainerOptions o;
    o.compute = a.precision == "bf16" ? DType::bf16 : DType::f32;
    o.optimizer = Sgd{0.9, true};
    o.logical_ranks = logical_ranks;
    if (world > 1)
      w->trainer = std::make_unique<Trainer>(*w->backend, strategy, resnet18(), o);
    else
      w->trainer = std::make_unique<Trainer>(*w->backend, solo, resnet18(), o);
    for (int i = 0; i < parts; ++i) w->parts.push_back(rows.view(part_of(a.batch, rank * parts + i, world * parts)));
    ways.push_back(std::move(w));
  };
  add("plain", 0, 1);
  if (world > 1) {
    add(std::to_string(world) + " logical ranks", world, 1);
  } else {
    add("forward and backward", 0, 1, false);
    for (const int v : {4, 8}) {
      const std::string n = std::to_string(v);
      add(n + " logical ranks", v, v);
      add(n + " micro-batches", 0, v);
      add(n + " times forward and backward", 0, v, false);
    }
  }
  for (auto& w : ways) w->run(3, a.batch);
  for (int round = 0; round < a.rounds; ++round)
    for (auto& w : ways) {
      comm.barrier(std::chrono::seconds(600));
      const double cpu = cpu_seconds();
      const Stopwatch watch;
      w->run(a.steps, a.batch);
      w->cpu_ms.push_back(1e3 * (cpu_seconds() - cpu) / a.steps);
      comm.barrier(std::chrono::seconds(600));
      w->ms.push_back(1e3 * watch.seconds() / a.steps);
    }
  const auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  for (const auto& w : ways) {
    std::vector<double> ratio, cpu_ratio;
    for (std::size_t i = 0; i < w->ms.size(); ++i) {
      ratio.push_back(w->ms[i] / ways[0]->ms[i]);
      cpu_ratio.push_back(w->cpu_ms[i] / ways[0]->cpu_ms[i]);
    }
    const ArenaLayout& p = w->trainer->executor().parameters();
    const auto* const weights = static_cast<const char*>(w->trainer->executor().parameter_data());
    const auto hash = static_cast<unsigned long long>(xxh64({weights, p.bytes()}));
    if (rank == 0)
      std::printf(
          "{\"way\": \"%s\", \"ranks\": %d, \"batch\": %d, \"precision\": \"%s\", \"ms\": %.2f, \"least\": %.2f, "
          "\"most\": %.2f, \"to_plain\": %.4f, \"cpu_ms\": %.2f, \"least_cpu\": %.2f, \"cpu_to_plain\": %.4f, "
          "\"weights\": \"%016llx\"}\n",
          w->name.c_str(), world, a.batch, a.precision.c_str(), median(w->ms),
          *std::min_element(w->ms.begin(), w->ms.end()), *std::max_element(w->ms.begin(), w->ms.end()), median(ratio),
          median(w->cpu_ms), *std::min_element(w->cpu_ms.begin(), w->cpu_ms.end()), median(cpu_ratio), hash);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return measure(parse(argc, argv));
  } catch (const Error& e) {
    std::fprintf(stderr, "logical_ranks: %s\n", e.what());
    return e.exit_code();
  }
}
