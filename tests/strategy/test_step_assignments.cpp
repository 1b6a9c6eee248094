// SPDX-License-Identifier: MIT
// Tests a server that assigns steps to workers that join and leave: the assignments, the workers that the server
// accepts, and the positions of the steps in the data.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/strategy/parameter_server/async_parameter_server.hpp>
#include <tutti/strategy/parameter_server/server/owned_operations.hpp>
#include <tutti/strategy/parameter_server/server/server.hpp>
#include <tutti/strategy/parameter_server/server/step_assigner.hpp>
#include <tutti/strategy/parameter_server/server/weight_store.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>
#include <tutti/strategy/parameter_server/wire/thread_transport.hpp>
#include <tutti/train/detail/run/step_feed.hpp>

using namespace tutti;
using namespace std::chrono_literals;
using Kind = StepAssignments::Reply::Kind;

TEST_CASE("each step is assigned to one worker, and the step of a leaving worker to another worker") {
  ps::StepAssigner assigner;
  for (std::int64_t n = 0; n < 4; ++n) CHECK(assigner.assign(n % 2 == 0 ? 3 : 8, 5).number == n);
  assigner.complete(3, 0);
  assigner.complete(8, 3);
  assigner.leave(8);  // 8 has not done step 1
  assigner.leave(8);
  CHECK(assigner.assign(3, 5).number == 1);
  CHECK(assigner.assign(9, 5).number == 4);
  CHECK(assigner.assign(9, 5).kind == Kind::wait);
  assigner.complete(9, 4);
  assigner.complete(3, 1);
  CHECK(assigner.assign(9, 5).kind == Kind::wait);  // 3 still has step 2
  assigner.complete(9, 2);                          // this step belongs to 3
  CHECK(assigner.assign(9, 5).kind == Kind::wait);
  assigner.leave(3);
  CHECK(assigner.assign(9, 5).number == 2);
  assigner.complete(9, 2);
  CHECK(assigner.assign(9, 5).kind == Kind::done);
  assigner.end_all();
  CHECK(assigner.assign(9, 5).kind == Kind::over);
  for (const Kind what : {Kind::wait, Kind::done, Kind::over})
    CHECK(ps::decode_assignment(ps::encode(StepAssignments::Reply{what})).kind == what);
  CHECK(ps::decode_assignment(ps::encode(StepAssignments::Reply{Kind::step, 7})).number == 7);
}

TEST_CASE("a worker that repeats its request of a step after it has connected again gets the same step") {
  ps::WeightStore store({}, 0, {}, [](const ServerPart&) {});
  std::vector<std::int64_t> answers;
  ps::OwnedOperations::Replies replies;
  replies.answer = [&](const ps::Frame&, std::span<const std::byte> data) {
    std::memcpy(&answers.emplace_back(), data.data(), sizeof answers.back());
  };
  ps::OwnedOperations server(store, {}, 2, std::move(replies));
  const auto ask = [&](std::uint32_t worker, std::uint64_t round) {
    ps::Frame f;
    f.operation = ps::Operation::fetch;
    f.root = ps::arena::steps;
    f.worker = worker;
    f.round = round;
    f.step = 5;  // the limit
    return server.take(f, {}, 1, 0);
  };
  for (const std::uint32_t worker : {0U, 1U}) server.begin(worker, 7);
  CHECK_FALSE(ask(0, 1));
  CHECK_FALSE(ask(1, 1));
  server.begin(0, 7);
  CHECK(ask(0, 1));
  CHECK_FALSE(ask(1, 2));
  CHECK(answers == std::vector<std::int64_t>{0, 1, 0, 2});
}

TEST_CASE("the number of a step determines the step's position in the data") {
  for (const EpochEnd end : {EpochEnd::short_step, EpochEnd::run_on})
    for (const std::int64_t size : {1, 7, 24, 25})
      for (const std::int64_t batch : {1, 3, 8})
        for (const Position base : {Position{}, Position{2, size / 2}}) {
          Position p = base;
          for (std::int64_t n = 0; n < 40; ++n, p = advance(p, size, batch, end))
            CHECK(detail::position_of(n, base, size, batch, end) == p);
        }
}

TEST_CASE("a loader gives the batches of the steps that were added") {
  const auto make = [](int threads) {
    return Loader(Synthetic({.size = 50, .height = 8, .width = 8, .classes = 4}),
                  {.placement = {.global_batch = 8}, .seed = 3, .threads = threads, .slots = 2});
  };
  Loader in_order = make(0);
  std::vector<std::vector<std::int64_t>> expected;
  for (int i = 0; i < 14; ++i) {
    const auto seen = in_order.next().indices;
    expected.emplace_back(seen.begin(), seen.end());
  }
  for (const int threads : {0, 2}) {
    Loader assigned = make(threads);
    for (int again = 0; again < 2; ++again) {
      assigned.start_assigned({.global_batch = 8});
      const std::vector<std::int64_t> steps{3, 0, 6, 13, 7, 2};
      const auto add = [&](std::int64_t n) { assigned.add(detail::position_of(n, {}, 50, 8, EpochEnd::short_step)); };
      for (std::size_t i = 0; i < 4; ++i) add(steps[i]);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        const Batch& b = assigned.next();
        CHECK(std::vector(b.indices.begin(), b.indices.end()) == expected[static_cast<std::size_t>(steps[i])]);
        CHECK(b.epoch == steps[i] / 7);
        if (i + 4 < steps.size()) add(steps[i + 4]);
      }
    }
    assigned.start({});
    const auto first = assigned.next().indices;
    CHECK(std::vector(first.begin(), first.end()) == expected[0]);
    CHECK_THROWS_AS(assigned.add({0, 50}), UsageError);
  }
}

namespace {

// A server with workers that join and leave.
class OpenServer {
 public:
  OpenServer() {
    auto end = std::make_unique<ps::ThreadServerEnd>(network, 0);
    thread_ = std::thread([this, end = std::move(end)]() mutable {
      ps::WeightStore store({}, 0, {}, [](const ServerPart&) {});
      ps::ServerOptions o;
      o.workers = 0;
      o.store = &store;
      o.members = [this] {
        const std::lock_guard lock(mutex_);
        return std::exchange(news_, std::nullopt);
      };
      o.released = [this] {
        const std::lock_guard lock(mutex_);
        return released_;
      };
      ps::Server<ps::ThreadServerEnd> server(std::move(end), o);
      server.run();
      lost = server.lost_workers();
    });
  }
  ~OpenServer() { join(); }
  void set(std::vector<std::uint32_t> numbers) {
    {
      const std::lock_guard lock(mutex_);
      news_ = std::move(numbers);
    }
    // Waits until the server has read the numbers, which it does every 20 ms.
    for (bool taken = false; !taken; std::this_thread::sleep_for(2ms)) {
      const std::lock_guard lock(mutex_);
      taken = !news_;
    }
  }
  void join() {
    {
      const std::lock_guard lock(mutex_);
      released_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] std::unique_ptr<AsyncParameterServer<ps::ThreadWorkerEnd>> worker(int number) {
    ps::WorkerOptions w;
    w.rank = number;
    w.workers = 0;
    w.deadline = 20s;
    return std::make_unique<AsyncParameterServer<ps::ThreadWorkerEnd>>(std::make_unique<ps::ThreadWorkerEnd>(network),
                                                                       w);
  }
  ps::ThreadNetwork network{1};
  std::string lost;

 private:
  std::mutex mutex_;
  std::optional<std::vector<std::uint32_t>> news_;
  bool released_ = false;
  std::thread thread_;
};

std::int64_t next(AsyncParameterServer<ps::ThreadWorkerEnd>& w, std::int64_t limit = 100) {
  w.ask_step(limit);
  const auto deal = w.take_step(true);
  return deal->kind == Kind::step ? deal->number : -static_cast<std::int64_t>(deal->kind);
}

}  // namespace

TEST_CASE("a server accepts only the current workers of the job; new workers have higher numbers") {
  OpenServer server;
  const auto refused = [&](int number) {
    try {
      (void)server.worker(number);
    } catch (const CommunicationError& e) {
      return std::string(e.what()).find("does not belong to the job") != std::string::npos;
    }
    return false;
  };
  CHECK(refused(0));
  server.set({0, 5});
  CHECK(refused(3));
  CHECK(refused(6));
  CHECK(refused(1 << 30));
  auto first = server.worker(0), fifth = server.worker(5);
  CHECK_FALSE(fifth->is_founder());
  CHECK(next(*first) == 0);
  CHECK(next(*fifth) == 1);
  CHECK(next(*fifth) == 2);
  fifth->did_step(1);
  server.set({0, 9});  // worker 5 was removed from the job, and does not know it
  CHECK_THROWS_AS((void)next(*fifth), CommunicationError);
  CHECK(refused(5));
  auto ninth = server.worker(9);
  CHECK(next(*ninth) == 2);
  CHECK(next(*first) == 3);
  first.reset();  // the worker leaves with two unfinished steps
  CHECK(next(*ninth, 4) == 0);
  CHECK(next(*ninth, 4) == 3);
  CHECK(next(*ninth, 4) == -static_cast<std::int64_t>(Kind::wait));
  for (const std::int64_t n : {0, 2, 3}) ninth->did_step(n);
  CHECK(next(*ninth, 4) == -static_cast<std::int64_t>(Kind::done));
  ninth->did_step(-1);
  CHECK(next(*ninth, 4) == -static_cast<std::int64_t>(Kind::over));
  ninth.reset();
  // No worker is left, but another worker may still join.
  server.set({0, 9, 12});
  auto twelfth = server.worker(12);
  CHECK(next(*twelfth, 4) == -static_cast<std::int64_t>(Kind::over));
  twelfth.reset();
  server.join();
  CHECK(server.lost == "rank 5");
}
