// SPDX-License-Identifier: MIT
// Tests asynchronous training by servers that own the weights, over threads. One worker gives the same bits as a single
// process. Several workers count the steps of all workers, staleness is limited, and workers leave and return.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/strategy/broadcast_text.hpp>
#include <tutti/strategy/parameter_server/async_parameter_server.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/wire/thread_transport.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/detail/trainer/optimizer_state.hpp>
#include <tutti/train/detail/trainer/server_update.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/trainer.hpp>

using namespace tutti;
using namespace std::chrono_literals;

namespace {

using Strategy = AsyncParameterServer<ps::ThreadWorkerEnd>;
static_assert(DistributedStrategy<Strategy>);

Graph net() {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {.relu = true});
  x = nn::conv_bn(b, "conv2", "bn2", x, {.out = 16, .stride = 2}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}
TrainerOptions options(AnyOptimizer optimizer = Sgd{0.9, true}) {
  TrainerOptions o;
  o.optimizer = std::move(optimizer);
  o.first_bucket_bytes = 1 << 8;
  o.bucket_bytes = 1 << 11;
  o.loss_scale = 2;
  o.ema_decay = 0.9;
  return o;
}
const Schedule rates = schedule::Poly(0.05, {.power = 2, .end = 0});
constexpr std::int64_t samples = 96, batch = 12;

Loader loader(int rank, int world) {
  return Loader(Synthetic({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true}),
                {.placement = {batch, rank, world}, .seed = 9, .threads = 0});
}
std::vector<std::byte> state_of(Trainer& t) {
  t.commit();
  std::vector<std::byte> all;
  for (const bool optimizer : {false, true})
    for (const StateSpan& s : t.committed_tensors(optimizer)) all.insert(all.end(), s.bytes.begin(), s.bytes.end());
  return all;
}

// The servers of a job, each of which is a thread.
class Servers {
 public:
  struct Options {
    int servers = 1, workers = 1;
    TrainerOptions trainer = options();
    std::int64_t steps_per_epoch = 8, total = 24;
    std::optional<std::int64_t> staleness{};
    std::chrono::milliseconds patience = 60s;
    bool windows = false;  // workers and servers use windows for pushes and weights
  };
  explicit Servers(Options o) : o_(std::move(o)), network(o_.servers), errors_(static_cast<std::size_t>(o_.servers)) {
    for (int s = 0; s < o_.servers; ++s) {
      auto end = std::make_unique<ps::ThreadServerEnd>(network, s);
      threads_.emplace_back([this, s, end = std::move(end)]() mutable { run(s, std::move(end)); });
    }
  }
  ~Servers() { (void)join(); }
  // Waits for the servers and returns the messages of their errors.
  std::vector<std::string> join() {
    for (auto& t : threads_)
      if (t.joinable()) t.join();
    return errors_;
  }
  std::vector<std::string> log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  [[nodiscard]] ps::WorkerOptions worker(int rank) const {
    ps::WorkerOptions w;
    w.rank = rank;
    w.workers = o_.workers;
    w.servers = o_.servers;
    w.deadline = 60s;
    w.big_array = 1000;
    w.windows = o_.windows ? &ProcessWindows::of_process() : nullptr;
    w.neighbours.assign(static_cast<std::size_t>(o_.servers), true);
    return w;
  }
  std::unique_ptr<Strategy> strategy(int rank, const std::string& identity = "") {
    return std::make_unique<Strategy>(std::make_unique<ps::ThreadWorkerEnd>(network, identity), worker(rank));
  }

 private:
  void run(int s, std::unique_ptr<ps::ThreadServerEnd> end) {
    try {
      ReferenceBackend backend;
      Solo solo;
      Trainer as_workers(backend, solo, net(), o_.trainer);
      const ArenaLayout& layout = as_workers.executor().parameters();
      const ServerUpdate update(backend, make_update_rules(layout, o_.trainer, layout.slices.size()),
                                o_.trainer.loss_scale, [&](std::int64_t step) {
                                  return rates(SchedulePoint{step, o_.steps_per_epoch, o_.total, batch, o_.workers});
                                });
      ps::WeightStore store(layout, o_.trainer.optimizer.slots(), as_workers.facts(), std::ref(update));
      ps::ServerOptions so;
      so.index = s;
      so.servers = o_.servers;
      so.workers = o_.workers;
      so.patience = o_.patience;
      ProcessWindows windows;
      so.windows = o_.windows ? &windows : nullptr;
      so.store = &store;
      so.staleness = o_.staleness;
      so.log = [this](const std::string& line) {
        const std::lock_guard lock(mutex_);
        log_.push_back(line);
      };
      ps::Server<ps::ThreadServerEnd>(std::move(end), so).run();
    } catch (const std::exception& e) {
      errors_[static_cast<std::size_t>(s)] = e.what();
    }
  }

  Options o_;

 public:
  ps::ThreadNetwork network;

 private:
  std::vector<std::string> errors_, log_;
  std::mutex mutex_;
  std::vector<std::thread> threads_;
};

FitOptions fit_options(std::int64_t epochs) {
  FitOptions f;
  f.epochs = epochs;
  f.global_batch = batch;
  f.schedule = rates;
  return f;
}

// Waits until a condition is true that other threads fulfil. Returns false if that takes too long.
bool soon(const std::function<bool()>& f) {
  for (int i = 0; i < 10000; ++i) {
    if (f()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

}  // namespace

TEST_CASE("asynchronous servers: training with one worker gives the same bits as a single process") {
  for (const AnyOptimizer& optimizer : {AnyOptimizer(Sgd{0.9, true}), AnyOptimizer(Adamw{}), AnyOptimizer(Adam{})}) {
    std::vector<std::byte> want;
    {
      ReferenceBackend backend;
      Solo solo;
      Trainer t(backend, solo, net(), options(optimizer));
      t.synchronise();
      Loader train = loader(0, 1), test = loader(0, 1);
      (void)fit(t, train, &test, fit_options(3));
      want = state_of(t);
    }
    for (const auto& places : {std::pair{1, false}, {2, false}, {3, false}, {1, true}, {3, true}}) {
      const int servers = places.first;  // clang 14 cannot capture a structured binding
      const bool windows = places.second;
      CAPTURE(servers);
      CAPTURE(windows);
      Servers job({.servers = servers, .trainer = options(optimizer), .windows = windows});
      {
        ReferenceBackend backend;
        const auto strategy = job.strategy(0);
        CHECK(strategy->name().starts_with(std::string("asynchronous parameter server over ") +
                                           (windows ? "windows" : "threads")));
        Trainer t(backend, *strategy, net(), options(optimizer));
        t.synchronise();
        Loader train = loader(0, 1), test = loader(0, 1);
        const FitResult r = fit(t, train, &test, fit_options(3));
        CHECK(r.counters.step == 24);
        CHECK(state_of(t) == want);
      }
      for (const std::string& e : job.join()) CHECK(e == "");
    }
  }
}

TEST_CASE("asynchronous servers: the steps of all independent workers are counted") {
  constexpr int workers = 3;
  Servers job({.servers = 2, .workers = workers, .steps_per_epoch = 24, .total = 144, .staleness = 4});
  std::vector<FitResult> results(workers);
  std::vector<std::string> errors(workers);
  std::vector<std::thread> threads;
  for (int r = 0; r < workers; ++r)
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      try {
        ReferenceBackend backend;
        const auto strategy = job.strategy(r);
        Trainer t(backend, *strategy, net(), options());
        t.synchronise();
        Loader train = loader(r, workers);
        results[i] = fit(t, train, nullptr, fit_options(6));
      } catch (const std::exception& e) {
        errors[i] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  for (const std::string& e : job.join()) CHECK(e == "");
  std::int64_t last = 0;
  for (std::size_t i = 0; i < workers; ++i) {
    CHECK(errors[i] == "");
    CHECK(results[i].counters.samples == 6 * samples);
    last = std::max(last, results[i].counters.step);
  }
  CHECK(results[0].counters.step == last);  // it saves the steps of all workers
  CHECK(last == workers * 6 * samples / batch);
  CHECK(results[0].last->train_loss < 1.2);  // ln 4 at the start
}

TEST_CASE("asynchronous servers: a worker that is too far ahead waits until the slowest worker catches up or leaves") {
  Servers job({.workers = 2, .staleness = 2});
  ReferenceBackend backend;
  auto fast = job.strategy(0), slow = job.strategy(1);
  Trainer a(backend, *fast, net(), options()), b(backend, *slow, net(), options());
  a.synchronise();
  b.synchronise();
  Loader train_a = loader(0, 2), train_b = loader(1, 2);
  std::atomic<int> steps{0};
  std::thread other([&] {
    for (int i = 0; i < 4; ++i) {
      a.step(train_a.next(), 0.1);
      ++steps;
    }
  });
  CHECK(soon([&] { return steps == 2; }));
  std::this_thread::sleep_for(50ms);
  CHECK(steps == 2);
  b.step(train_b.next(), 0.1);
  CHECK(soon([&] { return steps == 3; }));
  std::this_thread::sleep_for(50ms);
  CHECK(steps == 3);
  slow->abort("it has enough", ExitCode::interrupted);
  other.join();
  CHECK(steps == 4);
  CHECK(a.counters().step == 5);
  slow.reset();
  fast.reset();
  CHECK(job.join()[0] == "");
  CHECK(soon([&] { return !job.log().empty(); }));
  CHECK(job.log().front().find("rank 1 is gone: it has aborted; the other workers continue") != std::string::npos);
}

TEST_CASE("asynchronous servers: a worker that is started again continues with the servers' state") {
  Servers job({.servers = 2, .workers = 2, .staleness = 2});
  ReferenceBackend backend;
  auto first = job.strategy(0);
  auto second = job.strategy(1);
  Trainer a(backend, *first, net(), options()), b(backend, *second, net(), options());
  a.synchronise();
  b.synchronise();
  Loader train = loader(0, 2), more = loader(1, 2);
  b.step(more.next(), 0.1);
  for (int i = 0; i < 3; ++i) a.step(train.next(), 0.1);
  first->abort("killed", ExitCode::communication);
  first.reset();
  CHECK(soon([&] { return job.log().size() >= 2; }));
  b.pull();
  auto again = job.strategy(0);
  Trainer c(backend, *again, net(), options());  // the servers' weights replace its new weights
  c.synchronise();
  CHECK(c.counters().step == 4);
  CHECK(c.parameter("fc.weight").data()[0] == b.parameter("fc.weight").data()[0]);
  // The worker's steps before its loss delay neither the other workers nor the worker itself.
  for (int i = 0; i < 2; ++i) c.step(more.next(), 0.1);
  CHECK(c.counters().step == 6);
  again.reset();
  second.reset();
  for (const std::string& e : job.join()) CHECK(e == "");
}

TEST_CASE("asynchronous servers: a worker with different options is refused, and the others continue") {
  Servers job({.workers = 2});
  ReferenceBackend backend;
  auto first = job.strategy(0);
  Trainer a(backend, *first, net(), options());
  {
    auto second = job.strategy(1);
    TrainerOptions other = options();
    other.weight_decay = 0.5;
    CHECK_THROWS_WITH_AS(Trainer(backend, *second, net(), other),
                         doctest::Contains("weight decay is 0.000100 on the servers and 0.500000 on this worker"),
                         UsageError);
  }
  a.synchronise();
  Loader train = loader(0, 1);
  a.step(train.next(), 0.1);
  CHECK(a.counters().step == 1);
  first.reset();
  CHECK(job.join()[0] == "");
}

TEST_CASE(
    "asynchronous servers: workers agree on a text before a model exists, and a later rank 0 gets the same text") {
  Servers job({.workers = 2});
  std::string heard;
  auto second = job.strategy(1);
  std::thread other([&] { heard = broadcast_text(*second, "--run-dir", "mine"); });
  auto first = job.strategy(0);
  CHECK(broadcast_text(*first, "--run-dir", "runs/1") == "runs/1");
  other.join();
  CHECK(heard == "runs/1");
  first->abort("killed", ExitCode::communication);
  first.reset();
  CHECK(soon([&] { return !job.log().empty(); }));
  {
    const auto again = job.strategy(0);
    CHECK(broadcast_text(*again, "--run-dir", "runs/2") == "runs/1");
  }
  second.reset();
  CHECK(job.join()[0] == "");
}

TEST_CASE("asynchronous servers: the servers end if no worker connects, or after the last worker is lost") {
  {
    Servers job({.patience = 50ms});
    CHECK(job.join()[0].find("expected a worker within 50 ms, got no worker") != std::string::npos);
  }
  Servers job({.patience = 50ms});
  {
    ReferenceBackend backend;
    auto only = job.strategy(0);
    Trainer a(backend, *only, net(), options());
    only->abort("killed", ExitCode::communication);
  }
  CHECK(job.join()[0].find("expected a worker within 50 ms, got no worker") != std::string::npos);
}
