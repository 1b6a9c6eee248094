// SPDX-License-Identifier: MIT
// Tests workers with an emulated GPU and parameter servers: the data passes through pinned memory of the host, and
// training gives the result of one process.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/comm/thread_communicator.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/parameter_server/async_parameter_server.hpp>
#include <tutti/strategy/parameter_server/parameter_server.hpp>
#include <tutti/strategy/parameter_server/wire/thread_transport.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/detail/trainer/optimizer_state.hpp>
#include <tutti/train/detail/trainer/server_update.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/cuda_emulator.hpp"
#include "backends/emulated_cuda.hpp"
#include "comm/conformance.hpp"
#include "engine/conformance.hpp"
#include "strategy/changing_strategy.hpp"
#include "strategy/server_ranks.hpp"

using namespace tutti;
using conformance::require;
using testing::Emulated;

namespace {

constexpr int steps = 4;
constexpr std::int64_t rows = 8;
constexpr double rate = 0.05;

Graph net(bool norm) {
  Builder b(3, 6, 6);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = norm ? nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {}) : b.relu("relu1", nn::conv(b, "conv1", x, {.out = 8}));
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}
TrainerOptions options() {
  TrainerOptions o;
  o.optimizer = Sgd{0.9, true};
  o.first_bucket_bytes = 1 << 7;
  o.bucket_bytes = 1 << 9;
  return o;
}

// A strategy that checks the addresses that the trainer passes to it.
template <class Base>
struct Looking : Base {
  using Base::Base;
  Work reduce(const Piece& p) {
    look(p.bytes.data());
    return Base::reduce(p);
  }
  static void look(const void* p) {
    if (on_gpu) require(emulator::Device::instance().pinned.holds(p), "a piece that is not pinned");
    ++looks;
  }
  static inline thread_local bool on_gpu = false;
  static inline thread_local int looks = 0;
};
using Sync = Looking<ParameterServer<ps::ThreadWorkerEnd>>;
struct Async : Looking<AsyncParameterServer<ps::ThreadWorkerEnd>> {
  using Looking::Looking;
  Work exchange(const Push& p) {
    look(p.gradients.data());
    look(p.weights.data());
    return Looking::exchange(p);
  }
};

struct Trained {
  std::vector<float> weights, states;
};
template <class S>
Trained train(S& strategy, Backend& backend, const Graph& graph, std::int64_t begin, std::int64_t end) {
  Trainer t(backend, strategy, graph, options());
  t.synchronise();
  for (int i = 0; i < steps; ++i) {
    const auto all = testing::random_batch(graph, rows, static_cast<std::uint64_t>(i % 2));
    const std::int64_t row = graph[graph.images].shape.row_numel();
    t.step(BatchView{all.images.data() + begin * row, all.labels.data() + begin, end - begin}, rows, rate).wait();
  }
  t.commit();
  Trained r;
  const auto fetch = [&](const ArenaLayout& layout, const void* from) {
    std::vector<float> v(layout.count);
    if (!v.empty()) backend.memory().copy_out(v.data(), from, layout.bytes());
    return v;
  };
  r.weights = fetch(t.executor().parameters(), t.executor().parameter_data());
  r.states = fetch(t.executor().states(), t.executor().state_data());
  return r;
}
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double d = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    d = std::max(d, std::fabs(double{a[i]} - double{b[i]}));
  return d;
}

testing::Ends<ps::ThreadServerEnd, ps::ThreadWorkerEnd> ends_of(ps::ThreadNetwork& network) {
  return {[&](int s) { return std::make_unique<ps::ThreadServerEnd>(network, s); },
          [&](int) { return std::make_unique<ps::ThreadWorkerEnd>(network); }};
}

}  // namespace

TEST_CASE("a worker with a GPU and one without, with servers, train like a single process with the whole batch") {
  if (testing::no_emulator()) return;
  const Graph graph = net(false);
  ReferenceBackend host;
  Solo solo;
  const Trained one = train(solo, host, graph, 0, rows);
  ps::ThreadNetwork network(2);
  const testing::ServerJob job{.workers = 2, .servers = 2, .big_array = 100};
  std::vector<Trained> trained(2);
  testing::run_with_servers(job, ends_of(network), [&](std::unique_ptr<ps::ThreadWorkerEnd> end, int rank) {
    Sync s(std::move(end), testing::worker_options(job, rank));
    Sync::on_gpu = rank == 0;
    if (rank == 0) {
      Emulated gpu(testing::emulated_options());
      trained[0] = train(s, gpu, graph, 0, 3);
      require(Sync::looks >= 2 * steps, "several buckets a step");
    } else {
      ReferenceBackend cpu;
      trained[1] = train(s, cpu, graph, 3, rows);
    }
  }).rethrow();
  for (const Trained& t : trained) CHECK(difference(t.weights, one.weights) < 1e-5);
  CHECK(difference(one.weights, train(solo, host, graph, 0, 3).weights) > 1e-3);
}

TEST_CASE("servers also average the running statistics of a GPU") {
  if (testing::no_emulator()) return;
  const Graph graph = net(true);
  ps::ThreadNetwork network(1);
  const testing::ServerJob job{.workers = 2, .servers = 1};
  std::vector<Trained> trained(2);
  testing::run_with_servers(job, ends_of(network), [&](std::unique_ptr<ps::ThreadWorkerEnd> end, int rank) {
    Sync s(std::move(end), testing::worker_options(job, rank));
    Sync::on_gpu = rank == 0;
    std::unique_ptr<Backend> backend = std::make_unique<ReferenceBackend>();
    if (rank == 0) backend = std::make_unique<Emulated>(testing::emulated_options());
    trained[static_cast<std::size_t>(rank)] = train(s, *backend, graph, rank == 0 ? 0 : 4, rank == 0 ? 4 : rows);
  }).rethrow();
  REQUIRE(!trained[0].states.empty());
  CHECK(difference(trained[0].states, trained[1].states) < 1e-5);
  CHECK(difference(trained[0].weights, trained[1].weights) < 1e-5);
}

TEST_CASE("the integers of logical ranks on a GPU pass through pinned memory to the servers") {
  if (testing::no_emulator()) return;
  // Different processors have different bits, which these do not say.
  struct Gpu : Emulated {
    using Emulated::Emulated;
    [[nodiscard]] std::vector<BitFact> bits_depend_on() const override { return {}; }
  };
  struct Cpu : ReferenceBackend {
    [[nodiscard]] std::vector<BitFact> bits_depend_on() const override { return {}; }
  };
  const Graph graph = net(true);
  const std::int64_t row = graph[graph.images].shape.row_numel();
  const auto train_logical = [&](auto& strategy, Backend& backend, std::vector<std::int64_t> cuts) {
    TrainerOptions o = options();
    o.logical_ranks = 3;
    Trainer t(backend, strategy, graph, o);
    CHECK(!t.runs_ahead());
    for (int i = 0; i < steps; ++i) {
      const auto all = testing::random_batch(graph, rows, static_cast<std::uint64_t>(i % 2));
      std::vector<BatchView> views;
      for (std::size_t k = 0; k + 1 < cuts.size(); ++k)
        views.push_back({all.images.data() + cuts[k] * row, all.labels.data() + cuts[k], cuts[k + 1] - cuts[k]});
      t.step(views, rows, rate).wait();
    }
    t.commit();
    Trained r;
    const auto fetch = [&](const ArenaLayout& layout, const void* from) {
      std::vector<float> v(layout.count);
      backend.memory().copy_out(v.data(), from, layout.bytes());
      return v;
    };
    r.weights = fetch(t.executor().parameters(), t.executor().parameter_data());
    r.states = fetch(t.executor().states(), t.executor().state_data());
    return r;
  };
  Cpu host;
  Solo solo;
  const Trained one = train_logical(solo, host, {0, 3, 6, rows});
  Gpu alone(testing::emulated_options());
  const Trained on_gpu = train_logical(solo, alone, {0, 3, 6, rows});
  CHECK(difference(on_gpu.weights, one.weights) < 1e-5);
  ps::ThreadNetwork network(1);
  const testing::ServerJob job{.workers = 2, .servers = 1};
  std::vector<Trained> trained(2);
  testing::run_with_servers(job, ends_of(network), [&](std::unique_ptr<ps::ThreadWorkerEnd> end, int rank) {
    Sync s(std::move(end), testing::worker_options(job, rank));
    // The numbers after the last bucket are in the host's own memory.
    if (rank == 0) {
      Gpu gpu(testing::emulated_options());
      trained[0] = train_logical(s, gpu, {0, 3, 6});
    } else {
      Cpu cpu;
      trained[1] = train_logical(s, cpu, {6, rows});
    }
  }).rethrow();
  for (const Trained& t : trained) {
    CHECK(difference(t.weights, one.weights) < 1e-5);
    CHECK(difference(t.states, one.states) < 1e-5);
  }
  CHECK(trained[0].states == trained[1].states);
}

TEST_CASE("a server that owns the weights of a worker with a GPU makes the same updates as the GPU") {
  if (testing::no_emulator()) return;
  const Graph graph = net(true);
  ReferenceBackend host, of_server;
  Solo solo;
  const Trained alone = train(solo, host, graph, 0, rows);
  Trainer as_worker(of_server, solo, graph, options());
  const ArenaLayout& layout = as_worker.executor().parameters();
  const ServerUpdate update(of_server, make_update_rules(layout, options(), layout.slices.size()), 1,
                            [](std::int64_t) { return rate; });
  ps::WeightStore store(layout, options().optimizer.slots(), as_worker.facts(), std::cref(update));
  ps::ThreadNetwork network(1);
  ps::ServerOptions so = testing::server_options({.workers = 1}, 0);
  so.store = &store;
  std::string error;
  std::thread thread([&] {
    try {
      ps::Server<ps::ThreadServerEnd>(std::make_unique<ps::ThreadServerEnd>(network, 0), so).run();
    } catch (const Error& e) {
      error = e.what();
    }
  });
  {
    Async s(std::make_unique<ps::ThreadWorkerEnd>(network), testing::worker_options({.workers = 1}, 0));
    Async::on_gpu = true;
    Emulated gpu(testing::emulated_options());
    const Trained t = train(s, gpu, graph, 0, rows);
    CHECK(difference(t.weights, alone.weights) < 1e-5);
    CHECK(Async::looks >= 4 * steps);
  }
  thread.join();
  CHECK(error.empty());
}

TEST_CASE("a worker with a GPU trains alone, then with a worker that joins, and alone again") {
  if (testing::no_emulator()) return;
  const Graph graph = net(true);
  const std::int64_t row = graph[graph.images].shape.row_numel();
  ThreadGroup first(1), second(2), third(1), elsewhere(1);
  std::vector<float> weights[2];
  const auto step = [&](Trainer& t, int i, std::int64_t begin, std::int64_t end) {
    const auto all = testing::random_batch(graph, rows, static_cast<std::uint64_t>(i));
    t.step(BatchView{all.images.data() + begin * row, all.labels.data() + begin, end - begin}, rows, rate);
  };
  const auto fetch = [](Trainer& t, Backend& b, std::vector<float>& to) {
    t.commit();
    to.resize(t.executor().parameters().count);
    b.memory().copy_out(to.data(), t.executor().parameter_data(), t.executor().parameters().bytes());
  };
  std::thread other([&] {
    ReferenceBackend cpu;
    testing::Changing s;
    s.join(elsewhere, 0);
    Trainer t(cpu, s, graph, options());
    s.join(second, 1);
    t.reform();
    for (int i = 2; i < 4; ++i) step(t, i, 4, rows);
    fetch(t, cpu, weights[1]);
  });
  Emulated gpu(testing::emulated_options());
  testing::Changing s;
  s.join(first, 0);
  Trainer t(gpu, s, graph, options());
  CHECK(t.runs_ahead());
  for (int i = 0; i < 2; ++i) step(t, i, 0, rows);
  CHECK(t.take_metrics().rows == 2 * rows);
  s.join(second, 0);
  t.reform();
  CHECK_FALSE(t.runs_ahead());
  for (int i = 2; i < 4; ++i) step(t, i, 0, 4);
  CHECK(t.take_metrics().rows == 2 * 4);
  fetch(t, gpu, weights[0]);
  other.join();
  CHECK(difference(weights[0], weights[1]) < 1e-5);
  s.join(third, 0);
  t.reform();
  CHECK(t.runs_ahead());
  step(t, 4, 0, rows);
  CHECK(t.take_metrics().rows == rows);
  CHECK(t.counters().step == 5);
}
