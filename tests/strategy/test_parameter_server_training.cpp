// SPDX-License-Identifier: MIT
// Tests training with parameter servers: the result of one process, the same bits as an all-reduce, and complete steps.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/strategy/parameter_server/parameter_server.hpp>
#include <tutti/strategy/parameter_server/wire/thread_transport.hpp>
#include <tutti/strategy/solo.hpp>

#include "broken_step.hpp"
#include "comm/thread_ranks.hpp"
#include "server_ranks.hpp"

using namespace tutti;

namespace {

using Strategy = ParameterServer<ps::ThreadWorkerEnd>;
using Worker = ps::ServerCommunicator<ps::ThreadWorkerEnd>;
static_assert(DistributedStrategy<Strategy>);

testing::Ends<ps::ThreadServerEnd, ps::ThreadWorkerEnd> ends_of(ps::ThreadNetwork& network) {
  return {[&](int s) { return std::make_unique<ps::ThreadServerEnd>(network, s); },
          [&](int) { return std::make_unique<ps::ThreadWorkerEnd>(network); }};
}

Graph net() {
  Builder b(3, 6, 6);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 16}));
  x = b.relu("relu2", nn::conv(b, "conv2", x, {.out = 16, .stride = 2}));
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

// Trains twenty steps with twelve rows, of which each rank has a part. Returns the weights as bytes.
template <class B, class S>
std::vector<std::byte> train(B& backend, S& strategy, DType compute, bool batch_norm) {
  TrainerOptions o = testing::options_that_break();
  o.compute = compute;
  Trainer t(backend, strategy, batch_norm ? testing::net_that_breaks() : net(), o);
  const std::int64_t size = strategy.membership().size, rank = strategy.membership().rank;
  const std::int64_t begin = 12 * rank / size, end = 12 * (rank + 1) / size;
  std::vector<std::int32_t> labels(12);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int32_t>(i * 5 % 4);
  for (int step = 0; step < 20; ++step) {
    const auto images = testing::images_that_break(step, 0, 12);
    t.step({images.data() + begin * 108, labels.data() + begin, end - begin}, 12, 0.02).wait();
  }
  std::vector<std::byte> weights(t.executor().parameters().bytes());
  std::memcpy(weights.data(), t.executor().parameter_data(), weights.size());
  return weights;
}
template <class B>
std::vector<std::byte> train_by_servers(int workers, int servers, DType compute, bool batch_norm) {
  ps::ThreadNetwork network(servers);
  const testing::ServerJob job{.workers = workers, .servers = servers, .big_array = 100};
  std::vector<std::byte> weights;
  testing::run_with_servers(job, ends_of(network), [&](std::unique_ptr<ps::ThreadWorkerEnd> end, int rank) {
    Strategy strategy(std::move(end), testing::worker_options(job, rank));
    B backend;
    auto w = train(backend, strategy, compute, batch_norm);
    if (rank == 0) weights = std::move(w);
  }).rethrow();
  return weights;
}

}  // namespace

TEST_CASE("training with parameter servers in f64 gives the weights of one process within 1e-12") {
  ReferenceBackend backend;
  Solo solo;
  const auto one = train(backend, solo, DType::f64, false);
  for (const int workers : {1, 2, 3}) {
    CAPTURE(workers);
    const auto some = train_by_servers<ReferenceBackend>(workers, 2, DType::f64, false);
    REQUIRE(some.size() == one.size());
    double most = 0;
    for (std::size_t i = 0; i < one.size(); i += sizeof(double)) {
      double a = 0, b = 0;
      std::memcpy(&a, one.data() + i, sizeof a);
      std::memcpy(&b, some.data() + i, sizeof b);
      most = std::max(most, std::abs(a - b));
    }
    CHECK(most < 1e-12);
  }
}

TEST_CASE("training with parameter servers gives the same bits as an all-reduce over threads") {
  struct OneThread : CpuBackend {
    OneThread() : CpuBackend({1}) {}
  };
  for (const int workers : {2, 3, 5}) {
    CAPTURE(workers);
    std::vector<std::byte> want;
    run_ranks(workers, [&](ThreadCommunicator& c) {
      AllReduce strategy(c);
      OneThread backend;
      auto w = train(backend, strategy, DType::f32, true);
      if (c.rank() == 0) want = std::move(w);
    });
    for (const int servers : {1, 2, 3}) {
      CAPTURE(servers);
      CHECK(train_by_servers<OneThread>(workers, servers, DType::f32, true) == want);
    }
  }
}

TEST_CASE("parameter servers: a step that fails at any piece leaves the state of the previous step") {
  const auto run = [](int piece, int at_step, bool breaks, int& pieces) {
    ps::ThreadNetwork network(2);
    const testing::ServerJob job{.workers = 3, .servers = 2, .big_array = 100};
    std::vector<std::string> said(3);
    testing::run_server_ranks(job, ends_of(network), [&](Worker& c) {
      CpuBackend backend({1});
      testing::Breaking strategy(c, c.rank() == 1 ? at_step : 0, piece);
      said[static_cast<std::size_t>(c.rank())] = testing::break_a_step(backend, strategy, 1, breaks);
      if (c.rank() == 0) pieces = strategy.pieces();
    });
    return said;
  };
  int pieces = 0, some = 0;
  for (const std::string& s : run(0, 0, false, pieces)) CHECK(s == "");
  CHECK(pieces > 3);
  for (int piece = -2; piece < pieces; ++piece) {
    CAPTURE(piece);
    for (const std::string& s : run(piece, 4, true, some)) CHECK(s == "");
  }
}

TEST_CASE("parameter servers: all workers take rank 0's state, and the error for different options names the option") {
  ps::ThreadNetwork network(2);
  const testing::ServerJob job{.workers = 3, .servers = 2};
  testing::run_with_servers(job, ends_of(network), [&](std::unique_ptr<ps::ThreadWorkerEnd> end, int rank) {
    Strategy s(std::move(end), testing::worker_options(job, rank));
    CHECK(s.name() == "parameter server over threads, 2 servers");
    CHECK(s.membership().generation == 1);
    std::vector<float> weights(50'000, static_cast<float>(rank + 5));
    std::vector<StateSpan> state{{"weights", DType::f32, {50'000}, std::as_writable_bytes(std::span(weights))}};
    s.synchronise(state);
    CHECK(weights == std::vector<float>(50'000, 5.F));
    double v[] = {1, static_cast<double>(rank)};
    s.sum(v);
    CHECK(v[0] == 3);
    CHECK(v[1] == 3);
    JobFacts f;
    f.add("--lr", rank == 2 ? "0.2" : "0.1");
    CHECK_THROWS_WITH_AS(s.attach({}, f), doctest::Contains("--lr 0.1, as rank 0 has, got 0.2"), UsageError);
  }).rethrow();
}
