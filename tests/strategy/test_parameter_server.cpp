// SPDX-License-Identifier: MIT
// Tests workers and servers, as threads: sums, strangers, repeated and unexpected frames, and the names of lost
// processes.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/strategy/parameter_server/wire/placement.hpp>
#include <tutti/strategy/parameter_server/wire/thread_transport.hpp>

#include "bare_server.hpp"
#include "comm/conformance.hpp"
#include "comm/thread_ranks.hpp"
#include "server_ranks.hpp"

using namespace tutti;
using namespace std::chrono_literals;

namespace {

using Ends = testing::Ends<ps::ThreadServerEnd, ps::ThreadWorkerEnd>;
using Worker = ps::ServerCommunicator<ps::ThreadWorkerEnd>;
using Server = ps::Server<ps::ThreadServerEnd>;
using testing::Bare;
static_assert(Communicator<Worker>);

Ends ends_of(ps::ThreadNetwork& network) {
  return {[&](int s) { return std::make_unique<ps::ThreadServerEnd>(network, s); },
          [&](int) { return std::make_unique<ps::ThreadWorkerEnd>(network); }};
}
testing::ServerJobErrors run(const testing::ServerJob& job, const std::function<void(Worker&)>& f) {
  ps::ThreadNetwork network(job.servers);
  return testing::run_server_ranks(job, ends_of(network), f);
}
std::span<std::byte> bytes_of(std::vector<float>& v) { return std::as_writable_bytes(std::span(v)); }

}  // namespace

TEST_CASE("parameter server: the implementation over threads passes the conformance tests") {
  for (const bool windows : {false, true})
    for (const int workers : {1, 2, 3, 5})
      for (const int servers : {1, 2, 3})
        for (const auto& c : conformance::cases<Worker>()) {
          CAPTURE(windows);
          CAPTURE(workers);
          CAPTURE(servers);
          CAPTURE(c.name);
          CHECK_NOTHROW(run({.workers = workers, .servers = servers, .windows = windows}, c.run).rethrow());
        }
}

TEST_CASE("parameter server: the sums have the same bits as those of an all-reduce") {
  constexpr std::size_t n = 700'001;  // fills several frames
  const auto mine = [](int rank) {
    Rng rng(11, Purpose::user, 0, static_cast<std::uint64_t>(rank));
    std::vector<float> v(n);
    for (float& x : v) x = static_cast<float>(rng.normal());
    return v;
  };
  for (const int workers : {2, 3, 5}) {
    std::vector<float> want;
    run_ranks(workers, [&](ThreadCommunicator& c) {
      auto v = mine(c.rank());
      c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "bits").wait();
      if (c.rank() == 0) want = v;
    });
    for (const int servers : {1, 2, 3})
      for (const std::size_t in_flight : {std::size_t{1} << 20, ps::usual_in_flight})
        for (const bool windows : {false, true})
          run({.workers = workers, .servers = servers, .in_flight = in_flight, .windows = windows}, [&](Worker& c) {
            const std::string over = windows ? "parameter server over windows, " : "parameter server over threads, ";
            conformance::require(c.name().starts_with(over), c.name());
            const auto own = c.allocate(n * sizeof(float));
            const auto v = mine(c.rank());
            std::memcpy(own.data(), v.data(), own.size());
            c.all_reduce(DType::f32, own, ReduceOp::sum, "bits").wait();
            conformance::require(std::memcmp(own.data(), want.data(), own.size()) == 0, "other bits");
          }).rethrow();
  }
}

TEST_CASE("parameter server: f32 that is sent as bf16 is summed in f32 and rounded once") {
  constexpr std::size_t n = 300'001;
  const auto mine = [](int rank, std::size_t i) {
    return static_cast<float>(i % 977) * 0.01F + static_cast<float>(rank) * 0.3F;
  };
  ps::ThreadNetwork network(2);
  const testing::ServerJob job{.workers = 3, .servers = 2};
  testing::run_with_servers(job, ends_of(network), [&](std::unique_ptr<ps::ThreadWorkerEnd> end, int rank) {
    auto o = testing::worker_options(job, rank);
    o.bf16_wire = true;
    Worker c(std::move(end), o);
    std::vector<float> v(n);
    for (int round = 0; round < 2; ++round) {
      for (std::size_t i = 0; i < n; ++i) v[i] = mine(rank, i);
      c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "narrow").wait();
      for (std::size_t i = 0; i < n; ++i) {
        float sum = bf16(mine(0, i));
        for (int r = 1; r < 3; ++r) sum += static_cast<float>(bf16(mine(r, i)));
        if (v[i] != static_cast<float>(bf16(sum))) conformance::require(false, "element " + std::to_string(i));
      }
    }
    // Reductions of other types do not use a shorter type.
    std::vector<double> w{1e-9 + rank};
    c.all_reduce(DType::f64, std::as_writable_bytes(std::span(w)), ReduceOp::sum, "wide").wait();
    CHECK(w[0] == doctest::Approx(3e-9 + 3).epsilon(1e-14));
    std::vector<float> largest{1 + 1e-6F * static_cast<float>(rank)};
    c.all_reduce(DType::f32, bytes_of(largest), ReduceOp::max, "max").wait();
    CHECK(largest[0] == 1 + 2e-6F);
  }).rethrow();
}

TEST_CASE("parameter server: the root's data is not sent to a worker that already has the data") {
  run({.workers = 3, .servers = 2}, [](Worker& c) {
    std::vector<float> v(300'000, static_cast<float>(c.rank() + 1));
    c.broadcast(bytes_of(v), 1, "state", c.rank() == 2).wait();
    // Rank 0 said that it has the data, so it keeps its own.
    CHECK(v == std::vector<float>(v.size(), c.rank() == 0 ? 1.F : 2.F));
  }).rethrow();
  Bare job(2);
  ps::ThreadWorkerEnd other(job.network);
  Bare::hello(*job.end, 0, 77, 2);
  Bare::hello(other, 1, 88, 2);
  for (ps::ThreadWorkerEnd* end : {job.end.get(), &other}) CHECK(Bare::hear(*end).frame.kind == ps::FrameKind::welcome);
  auto f = Bare::push(0, 77, 1), g = Bare::push(1, 88, 1);
  for (ps::Frame* each : {&f, &g}) {
    each->operation = ps::Operation::take;
    each->root = 0;
  }
  f.has = true;
  Bare::send(*job.end, f, {1, 2});
  Bare::send(other, g, {});
  const auto mine = Bare::hear(*job.end), its = Bare::hear(other);
  CHECK(mine.frame.kind == ps::FrameKind::answer);
  CHECK(mine.values.empty());
  CHECK(its.values == std::vector<float>{1, 2});
  job.stop();
  // A frame of a sum may not say that the worker has the data: all workers need the sum.
  std::string_view why;
  auto sum = Bare::push(0, 77, 2);
  sum.has = true;
  CHECK_FALSE(ps::decode(ps::encode(sum), sum.bytes, why));
  CHECK(why == "a request without data in a frame that cannot have one");
}

TEST_CASE("parameter server: the error names a missing worker") {
  const auto errors = run({.workers = 3, .deadline = 200ms}, [&](Worker& c) {
    std::vector<float> v(10);
    if (c.rank() == 1) return std::this_thread::sleep_for(600ms);
    c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "step 3 bucket 0").wait();
  });
  for (const std::size_t r : {0U, 2U}) {
    const std::string text = testing::ServerJobErrors::text(errors.workers[r]);
    CHECK_MESSAGE(text.find("[step 3 bucket 0] expected all ranks within 200 ms, got no message from rank 1") == 0,
                  text);
  }
  CHECK(testing::ServerJobErrors::text(errors.servers[0]).find("rank 1") != std::string::npos);
}

TEST_CASE("parameter server: different operations are an error, not a wrong sum") {
  const auto errors = run({}, [](Worker& c) {
    std::vector<float> v(c.rank() == 0 ? 100 : 101);
    c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "x").wait();
  });
  for (const auto& e : errors.workers)
    CHECK(testing::ServerJobErrors::text(e).find("the same operation on all ranks") != std::string::npos);
}

TEST_CASE("parameter server: the errors of all workers name a worker that aborts") {
  const auto errors = run({.workers = 3, .servers = 2}, [](Worker& c) {
    std::vector<float> v(5000);
    c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "step 1 bucket 0").wait();
    if (c.rank() == 1) c.abort("record 7 is short", ExitCode::data);
    c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "step 2 bucket 0").wait();
  });
  const auto text = [&](std::size_t r) { return testing::ServerJobErrors::text(errors.workers[r]); };
  CHECK_MESSAGE(text(1).find("this rank has aborted") != std::string::npos, text(1));
  for (const std::size_t r : {0U, 2U})
    CHECK_MESSAGE(text(r).find("expected all ranks, got rank 1 has aborted: record 7 is short") != std::string::npos,
                  text(r));
}

TEST_CASE("parameter server: destruction by an exception does not block, and the other workers are notified") {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run({}, [](Worker& c) {
    std::vector<float> v(5000);
    for (int i = 0; i < 3; ++i) {
      if (c.rank() == 0 && i == 1) fail<DataError>("record 7", "3073 bytes", "12");
      c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "bucket").wait();
    }
  });
  CHECK(testing::ServerJobErrors::text(errors.workers[0]).find("record 7") != std::string::npos);
  CHECK(testing::ServerJobErrors::text(errors.workers[1]).find("rank 0 has aborted") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < 20s);
}

TEST_CASE("parameter server: the error names a worker or a server that ends without a message") {
  ps::ThreadNetwork network(2);
  const testing::ServerJob job{.workers = 2, .servers = 2};
  const auto errors =
      testing::run_with_servers(job, ends_of(network), [&](std::unique_ptr<ps::ThreadWorkerEnd> end, int rank) {
        if (rank == 1) {
          // This worker greets both servers and ends.
          ps::Frame f;
          f.worker = 1;
          f.generation = 1;
          for (std::uint32_t s = 0; s < 2; ++s) {
            const auto greeting = ps::encode(ps::Greeting{s, 2, 2, 1000, "elsewhere"});
            f.bytes = static_cast<std::uint32_t>(greeting.size());
            end->send(s, ps::encode(f), greeting, nullptr);
          }
          // It ends after both servers have admitted all workers.
          for (int s = 0; s < 2; ++s) {
            const auto e = end->receive(std::chrono::steady_clock::now() + 60s);
            CHECK(e.what == ps::Event<ps::ThreadMessage>::What::message);
          }
          return;
        }
        Worker c(std::move(end), testing::worker_options(job, rank));
        CHECK(c.rank_name(1) == "rank 1 on elsewhere");
        std::vector<float> v(10);
        c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "step 1 bucket 0").wait();
      });
  const std::string text = testing::ServerJobErrors::text(errors.workers[0]);
  CHECK_MESSAGE(text.find("rank 1 on elsewhere is gone") != std::string::npos, text);
}

TEST_CASE("parameter server: the error names a server that ends") {
  ps::ThreadNetwork network(2);
  const testing::ServerJob job{.workers = 1, .servers = 2};
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::thread> threads;
  for (int s = 0; s < 2; ++s)
    servers.push_back(
        std::make_unique<Server>(std::make_unique<ps::ThreadServerEnd>(network, s), testing::server_options(job, s)));
  for (auto& server : servers)
    threads.emplace_back([&server] {
      try {
        server->run();
      } catch (const CommunicationError&) {  // the worker ended after the loss
      }
      server.reset();
    });
  std::string text;
  try {
    Worker c(std::make_unique<ps::ThreadWorkerEnd>(network), testing::worker_options(job, 0));
    std::vector<float> v(5000);
    c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "step 1 bucket 0").wait();
    servers[1]->stop();
    threads[1].join();
    c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "step 2 bucket 0").wait();
  } catch (const CommunicationError& e) {
    text = e.what();
  }
  threads[0].join();
  CHECK_MESSAGE(text.find("server 1 at a thread is gone: it ended") != std::string::npos, text);
}

TEST_CASE("server: a repeated frame is answered twice and added once") {
  Bare job(2);
  ps::ThreadWorkerEnd other(job.network);
  Bare::hello(*job.end, 0, 77, 2);
  Bare::hello(other, 1, 88, 2);
  CHECK(Bare::hear(*job.end).frame.kind == ps::FrameKind::welcome);
  CHECK(Bare::hear(other).frame.kind == ps::FrameKind::welcome);
  for (int i = 0; i < 3; ++i) Bare::send(*job.end, Bare::push(0, 77, 1), {1, 2});
  Bare::send(other, Bare::push(1, 88, 1), {10, 20});
  CHECK(Bare::hear(*job.end).values == std::vector<float>{11, 22});
  CHECK(Bare::hear(other).values == std::vector<float>{11, 22});
  Bare::send(other, Bare::push(1, 88, 1), {10, 20});
  const auto again = Bare::hear(other);
  CHECK(again.frame.kind == ps::FrameKind::answer);
  CHECK(again.values == std::vector<float>{11, 22});
  // When both workers have reported the end of the round, such a frame belongs to another round.
  for (const std::uint64_t round : {2U, 1U, 3U}) {
    auto f = Bare::push(0, 77, round), g = Bare::push(1, 88, round);
    f.done = g.done = 2;
    Bare::send(*job.end, f, {3, 3});
    Bare::send(other, g, {4, 4});
  }
  for (int i = 0; i < 2; ++i) CHECK(Bare::hear(other).values == std::vector<float>{7, 7});
  job.stop();
  CHECK(job.server.counts().repeated == 3);
  CHECK(job.server.counts().stale == 2);
}

TEST_CASE("server: unknown connections, frames of another round and invalid frames have no effect") {
  Bare job(2);
  ps::ThreadWorkerEnd other(job.network), stranger(job.network);
  const std::vector<std::byte> noise(80, std::byte{0x5a});
  stranger.send(0, noise, {}, nullptr);
  stranger.send(0, std::span(noise).first(3), noise, nullptr);
  // Greetings of another job or generation, with other settings, and with a rank that has already joined.
  Bare::hello(*job.end, 0, 77, 2);
  Bare::hello(stranger, 1, 5, 3);
  CHECK(Bare::hear(stranger).text == "workers 2 on this server and 3 on the worker");
  Bare::hello(stranger, 1, 5, 2, 9);
  CHECK(Bare::hear(stranger).text == "generation 1 on this server and 9 on the worker");
  Bare::hello(stranger, 1, 5, 2, 1, 7);
  CHECK(Bare::hear(stranger).text == "MXNET_KVSTORE_BIGARRAY_BOUND 1000 on this server and 7 on the worker");
  Bare::hello(stranger, 0, 5, 2);
  CHECK(Bare::hear(stranger).text == "rank 0 has joined already");
  Bare::hello(stranger, 2, 5, 2);
  CHECK(Bare::hear(stranger).text == "this worker does not belong to the job");
  Bare::hello(other, 1, 88, 2);
  CHECK(Bare::hear(*job.end).frame.kind == ps::FrameKind::welcome);
  // Pushes in the name of rank 1 by a stranger, of another session, of another generation, and with an invalid root.
  Bare::send(stranger, Bare::push(1, 88, 1), {100, 100});
  Bare::send(*job.end, Bare::push(0, 76, 1), {100, 100});
  auto old = Bare::push(0, 77, 1);
  old.generation = 0;
  Bare::send(*job.end, old, {100, 100});
  auto rootless = Bare::push(0, 77, 1);
  rootless.operation = ps::Operation::take;
  rootless.root = 2;
  Bare::send(*job.end, rootless, {});
  auto answer = Bare::push(0, 77, 1);
  answer.kind = ps::FrameKind::answer;
  Bare::send(*job.end, answer, {1, 1});
  Bare::send(*job.end, Bare::push(0, 77, 1), {1, 2});
  Bare::send(other, Bare::push(1, 88, 1), {10, 20});
  CHECK(Bare::hear(*job.end).values == std::vector<float>{11, 22});
  job.stop();
  CHECK(job.error == "");
  CHECK(job.server.counts().malformed == 4);
  CHECK(job.server.counts().strangers == 5);
  CHECK(job.server.counts().stale == 3);
  CHECK(!job.log.empty());
  CHECK(job.log.size() < 4);  // at most one line per second
}

TEST_CASE("server: the unanswered frames of a worker are limited") {
  Bare job(2, 16);
  ps::ThreadWorkerEnd other(job.network);
  Bare::hello(*job.end, 0, 77, 2);
  Bare::hello(other, 1, 88, 2);
  Bare::hear(*job.end);
  for (const std::uint64_t at : {0U, 8U, 16U}) Bare::send(*job.end, Bare::push(0, 77, 1, at), {1, 2});
  const auto refused = Bare::hear(*job.end);
  CHECK(refused.frame.kind == ps::FrameKind::refuse);
  CHECK(refused.text == "more than 16 unanswered bytes");
  job.stop();
  CHECK(job.server.counts().too_much == 1);
}

TEST_CASE("placement: large arrays are divided among all servers, and each small array is on one server") {
  const auto of = [](std::uint64_t key, std::size_t elements, int servers) {
    std::vector<std::array<std::size_t, 3>> parts;
    ps::place(key, elements, 4, servers, 1'000'000, [&](int s, std::size_t begin, std::size_t end) {
      parts.push_back({static_cast<std::size_t>(s), begin, end});
    });
    return parts;
  };
  CHECK(of(1, 0, 3).empty());
  CHECK(of(7, 999'999, 3) == std::vector<std::array<std::size_t, 3>>{{7 * 9973 % 3, 0, 3'999'996}});
  CHECK(of(7, 1'000'000, 1) == std::vector<std::array<std::size_t, 3>>{{0, 0, 4'000'000}});
  const auto parts = of(7, 1'000'003, 3);
  REQUIRE(parts.size() == 3);
  std::size_t at = 0;
  for (std::size_t s = 0; s < 3; ++s) {
    CHECK(parts[s][0] == s);
    CHECK(parts[s][1] == at);
    CHECK(parts[s][1] % 64 == 0);
    at = parts[s][2];
    CHECK(at - parts[s][1] > 1'300'000);
  }
  CHECK(at == 4'000'012);
  // Small arrays are distributed over the servers.
  std::vector<int> count(4);
  for (std::uint64_t key = 1; key <= 400; ++key) ++count[static_cast<std::size_t>(ps::server_of(key, 4))];
  for (const int n : count) CHECK(n == 100);

  const auto bound = [](const char* text) { return ps::big_array_bound([text](const char*) { return text; }); };
  CHECK(bound(nullptr) == 1'000'000);
  CHECK(bound("1") == 1);
  for (const char* text : {"0", "-1", "1e6", "many"}) CHECK_THROWS_AS(bound(text), UsageError);
}
