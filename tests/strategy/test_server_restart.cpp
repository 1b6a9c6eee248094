// SPDX-License-Identifier: MIT
// Tests servers that own weights, are lost and start again: workers wait for them, and a server continues from its
// stored state.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/strategy/parameter_server/async_parameter_server.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/wire/thread_transport.hpp>

#include "server_ranks.hpp"

using namespace tutti;
using namespace std::chrono_literals;

namespace {

struct WorkerEnd : ps::ThreadWorkerEnd {
  explicit WorkerEnd(ps::ThreadNetwork& network, std::function<void()> before = {})
      : ThreadWorkerEnd(network), before_reopen(std::move(before)) {}
  bool reopen(std::int64_t server) {
    if (before_reopen) before_reopen();
    return ThreadWorkerEnd::reopen(server);
  }
  std::function<void()> before_reopen;
};
using Strategy = AsyncParameterServer<WorkerEnd>;
static_assert(ps::Reopening<WorkerEnd>);
constexpr std::size_t n = 5000;

ArenaLayout layout() {
  ArenaLayout l;
  l.dtype = DType::f32;
  l.count = n;
  Slice s;
  s.name = "w";
  s.count = n;
  l.slices = {s};
  return l;
}

// A server in its own thread, which subtracts gradients from the weights.
class ServerThread {
 public:
  ServerThread(ps::ThreadNetwork& network, int index, int servers, const ps::ServerState* from = nullptr)
      : store_(layout(), 0, {}, [](const ServerPart& p) {
          for (std::size_t i = 0; i < p.end - p.begin; ++i)
            static_cast<float*>(p.weights)[i] -= static_cast<const float*>(p.gradients)[i];
        }) {
    ps::ServerOptions o = testing::server_options({.workers = 1, .servers = servers}, index);
    o.store = &store_;
    o.from = from;
    o.keep_every = 0ms;
    o.keep = [this](ps::ServerState&& s) {
      const std::lock_guard lock(mutex_);
      if (keeps) kept_ = std::move(s);
    };
    o.log = [this](const std::string& line) { log += line + "\n"; };
    server_.emplace(std::make_unique<ps::ThreadServerEnd>(network, index), o);
    thread_ = std::thread([this] {
      try {
        server_->run();
      } catch (const Error& e) {
        log += e.what();
      }
    });
  }
  // Ends without a message to the server's workers.
  ~ServerThread() { end(); }
  void end() {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
    counts = server_->counts();
    server_.reset();
  }
  void wait() { thread_.join(); }
  // Waits until the server has stored its state after this number of steps, and returns the state.
  ps::ServerState kept(std::int64_t steps) {
    for (;; std::this_thread::sleep_for(1ms)) {
      const std::lock_guard lock(mutex_);
      if (kept_.steps == steps && !kept_.pieces.empty()) return kept_;
    }
  }
  std::atomic<bool> keeps{true};
  std::string log;
  ps::ServerCounts counts;

 private:
  ps::WeightStore store_;
  std::mutex mutex_;
  ps::ServerState kept_;
  std::optional<ps::Server<ps::ThreadServerEnd>> server_;
  std::thread thread_;
};

ps::WorkerOptions worker(int servers, bool servers_return = true) {
  auto o = testing::worker_options({.workers = 1, .servers = servers}, 0);
  o.servers_return = servers_return;
  return o;
}

// A worker with weights that start at 100.
struct Worker {
  Worker(ps::ThreadNetwork& network, const ps::WorkerOptions& o, std::function<void()> before_reopen = {})
      : strategy(std::make_unique<WorkerEnd>(network, std::move(before_reopen)), o) {
    strategy.attach(layout(), {});
    std::vector<StateSpan> state{{"weights", DType::f32, {n}, std::as_writable_bytes(std::span(weights))}};
    strategy.synchronise(state);
  }
  // Pushes a gradient with the same value for all weights.
  void step(float gradient) {
    strategy.begin_step(++steps, false);
    gradients.assign(n, gradient);
    strategy
        .exchange({0, 0, DType::f32, std::as_bytes(std::span(gradients)), std::as_writable_bytes(std::span(weights))})
        .wait();
  }
  Strategy strategy;
  std::vector<float> weights = std::vector<float>(n, 100), gradients;
  std::int64_t steps = 0;
};

}  // namespace

TEST_CASE("a restarted server continues from its stored state, and later steps are lost, counted and logged") {
  ps::ThreadNetwork network(2);
  std::optional<ServerThread> first(std::in_place, network, 0, 2);
  ServerThread second(network, 1, 2);
  Worker w(network, worker(2));
  for (const float g : {1.F, 2.F, 4.F}) w.step(g);
  const ps::ServerState kept = first->kept(3);
  REQUIRE(kept.workers.size() == 1);
  CHECK(kept.workers[0].its_step == 3);
  first->keeps = false;
  for (const float g : {8.F, 16.F}) w.step(g);
  CHECK(w.weights.front() == 100 - 31);
  first.reset();
  // A step that begins while the server is absent completes after the server has returned.
  std::thread starts([&] {
    std::this_thread::sleep_for(300ms);
    first.emplace(network, 0, 2, &kept);
  });
  w.step(32);
  starts.join();
  CHECK(w.weights.front() == 100 - 7 - 32);
  CHECK(w.weights.back() == 100 - 63);
  CHECK(w.strategy.progress() == 6);
  CHECK(first->kept(6).workers[0].its_step == 6);
  std::vector<float> pulled(n);
  std::vector<StateSpan> state{{"weights", DType::f32, {n}, std::as_writable_bytes(std::span(pulled))}};
  w.strategy.pull(state);
  CHECK(pulled == w.weights);
  first->end();
  CHECK(first->counts.lost_steps == 2);
  CHECK_MESSAGE(
      first->log.find("server 0 has lost 2 steps of rank 0, which were done after its state was last saved") == 0,
      first->log);
}

TEST_CASE("steps in a server's stored state are not applied again when the worker repeats them") {
  ps::ThreadNetwork network(1);
  auto worker = std::make_unique<ps::ThreadWorkerEnd>(network);
  const auto hello = [&] {
    const auto greeting = ps::encode(ps::Greeting{0, 1, 1, 1000, ""});
    ps::Frame f;
    f.session = 5;
    f.generation = 1;
    f.bytes = static_cast<std::uint32_t>(greeting.size());
    worker->send(0, ps::encode(f), greeting, nullptr);
  };
  const auto push = [&](ps::Operation operation, std::uint32_t root, std::uint64_t round, std::uint64_t step,
                        const std::vector<float>& data) {
    ps::Frame f;
    f.kind = ps::FrameKind::push;
    f.operation = operation;
    f.dtype = root == ps::arena::seal ? DType::u8 : DType::f32;
    f.root = root;
    f.session = 5;
    f.generation = 1;
    f.round = round;
    f.step = step;
    f.bytes = static_cast<std::uint32_t>(data.size() * sizeof(float));
    worker->send(0, ps::encode(f), std::as_bytes(std::span(data)), nullptr);
  };
  // Receives the next answer and returns its numbers.
  const auto answer = [&] {
    for (;;) {
      const auto e = worker->receive(std::chrono::steady_clock::now() + 20s);
      if (e.what == ps::Event<ps::ThreadMessage>::What::lost) continue;
      std::string_view why;
      const auto f = ps::decode(e.message.head(), e.message.data().size(), why);
      REQUIRE(f);
      if (f->kind == ps::FrameKind::welcome) continue;
      REQUIRE(f->kind == ps::FrameKind::answer);
      std::vector<float> values(e.message.data().size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), e.message.data().data(), e.message.data().size());
      return values;
    }
  };
  ps::ServerState kept;
  const std::vector<float> ones(16, 1);
  {
    ServerThread server(network, 0, 1);
    hello();
    push(ps::Operation::store, ps::arena::weights, 1, 0, ones);
    push(ps::Operation::store, ps::arena::seal, 2, 0, {0.F, 0.F});
    push(ps::Operation::apply, ps::arena::weights, 3, 1, ones);
    for (int i = 0; i < 2; ++i) CHECK(answer().empty());
    CHECK(answer() == std::vector<float>(16, 0));
    kept = server.kept(1);
  }
  ServerThread server(network, 0, 1, &kept);
  REQUIRE(worker->reopen(0));
  hello();
  push(ps::Operation::apply, ps::arena::weights, 3, 1, ones);
  CHECK(answer() == std::vector<float>(16, 0));
  push(ps::Operation::apply, ps::arena::weights, 4, 2, ones);
  CHECK(answer() == std::vector<float>(16, -1));
  server.end();
  CHECK(server.counts.lost_steps == 0);
  CHECK(server.counts.repeated == 1);
}

TEST_CASE("a worker that begins while a server is absent waits for the server if servers can be restarted") {
  for (const bool returns : {true, false}) {
    ps::ThreadNetwork network(2);
    std::optional<ServerThread> first(std::in_place, network, 0, 2);
    ServerThread second(network, 1, 2);
    first.reset();
    std::string said;
    try {
      Worker w(network, worker(2, returns), [&] {
        if (!first) first.emplace(network, 0, 2);
      });
      w.step(1);
      CHECK(w.weights.front() == 99);
    } catch (const CommunicationError& e) {
      said = e.what();
    }
    CHECK_MESSAGE((returns ? said.empty() : said.find("cannot send to it") != std::string::npos), said);
  }
}

TEST_CASE("the error names a server that does not come back or cannot be restarted") {
  for (const bool returns : {true, false}) {
    ps::ThreadNetwork network(1);
    std::optional<ServerThread> server(std::in_place, network, 0, 1);
    auto o = worker(1, returns);
    o.deadline = 400ms;
    std::string said;
    try {
      Worker w(network, o);
      w.step(1);
      server.reset();
      w.step(1);
    } catch (const CommunicationError& e) {
      said = e.what();
    }
    CHECK_MESSAGE(said.find(returns ? "server 0 at a thread to return within 400 ms"
                                    : "server 0 at a thread is gone") != std::string::npos,
                  said);
  }
}

TEST_CASE("a server does not wait for workers that ended before the server started") {
  ps::ThreadNetwork network(1);
  ps::WeightStore store(layout(), 0, {}, [](const ServerPart&) {});
  ps::ServerState kept;
  kept.pieces.push_back({ps::arena::weights, 0, std::vector<std::byte>(n * sizeof(float))});
  kept.workers.resize(2);
  ps::ServerOptions o = testing::server_options({.workers = 2}, 0);
  o.store = &store;
  o.from = &kept;
  o.ended = {0};
  ps::Server<ps::ThreadServerEnd> server(std::make_unique<ps::ThreadServerEnd>(network, 0), o);
  std::thread thread([&] { server.run(); });
  {
    auto w = testing::worker_options({.workers = 2}, 1);
    Strategy s(std::make_unique<WorkerEnd>(network), w);
    s.attach(layout(), {});
    CHECK(s.others_at_work() == 0);
  }
  thread.join();
}

TEST_CASE("an invalid state of a server is refused") {
  ps::WeightStore store(layout(), 1, {}, [](const ServerPart&) {});
  const auto refused = [&](ps::ServerState::Piece piece) {
    ps::ServerState s;
    s.pieces = {std::move(piece)};
    try {
      store.restore(s);
    } catch (const DataError&) {
      return true;
    }
    return false;
  };
  const auto bytes = [](std::size_t count) { return std::vector<std::byte>(count); };
  CHECK(refused({ps::arena::weights, 0, bytes(n * 4 + 4096)}));
  CHECK(refused({ps::arena::weights, ~std::uint64_t{0} - 8, bytes(64)}));
  CHECK(refused({2, 0, bytes(64)}));  // a second slot, but the optimizer has one
  CHECK(refused({77, 0, bytes(64)}));
  CHECK_FALSE(refused({1, 64, bytes(64)}));
}
