// SPDX-License-Identifier: MIT
// takes long
// Tests several ranks that train one model on emulated GPUs over an emulated NCCL: the results equal those of one rank
// with the whole batch, for captured steps and for steps that are started op by op.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/cluster/rendezvous/tcp_rendezvous.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/cuda_emulator.hpp"
#include "backends/emulated_cuda.hpp"
#include "comm/conformance.hpp"
#include "engine/conformance.hpp"
#include "nccl_emulator.hpp"
#include "strategy/broken_step.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using conformance::require;
using testing::Emulated;

namespace {

constexpr int classes = 4, steps = 6;
constexpr std::int64_t rows = 8;

// The net has no batch norm, because a batch norm uses the statistics of a rank's own rows.
Graph net() {
  Builder b(3, 6, 6);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 8}));
  x = b.relu("relu2", nn::conv(b, "conv2", x, {.out = 8, .stride = 2}));
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), classes, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}
Graph net_with_batch_norm() {
  Builder b(3, 6, 6);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), classes, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

TrainerOptions options(DType compute = DType::f32) {
  TrainerOptions o;
  o.compute = compute;
  o.dynamic_loss_scale = compute == DType::f16;
  o.optimizer = Sgd{0.9, true};
  // Makes several buckets, each with a few slices.
  o.first_bucket_bytes = 1 << 7;
  o.bucket_bytes = 1 << 9;
  return o;
}

struct Trained {
  std::vector<double> losses;  // losses over all ranks
  std::vector<std::byte> weights;
};

// Trains on the rows from `begin` to `end` of every batch.
template <class S>
Trained train(S& strategy, Emulated& backend, const Graph& graph, const TrainerOptions& o, std::int64_t begin,
              std::int64_t end) {
  Trainer t(backend, strategy, graph, o);
  Trained r;
  for (int i = 0; i < steps; ++i) {
    const auto all = testing::random_batch(graph, rows, static_cast<std::uint64_t>(i % 2));
    const std::int64_t row = graph[graph.images].shape.row_numel();
    const BatchView mine{all.images.data() + begin * row, all.labels.data() + begin, end - begin};
    r.losses.push_back(t.reduce(t.step(mine, rows, 0.05).wait().metrics).mean_loss());
  }
  r.weights = testing::fetch(backend, t.executor().parameter_data(), t.executor().parameters().bytes());
  return r;
}

double largest_difference(const Trained& a, const Trained& b) {
  double d = a.weights.size() == b.weights.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i + 4 <= a.weights.size(); i += 4) {
    float x = 0, y = 0;
    std::memcpy(&x, a.weights.data() + i, 4);
    std::memcpy(&y, b.weights.data() + i, 4);
    d = std::max(d, std::fabs(static_cast<double>(x) - static_cast<double>(y)));
  }
  return d;
}

int free_port() {
  const TcpRendezvous free({"127.0.0.1", 0, "job", "a secret of the tests", 0, 2, 1s});
  return free.port();
}
AnyStrategy make_strategy(Emulated& backend, int port, int rank, int size) {
  TcpRendezvous meet({"127.0.0.1", port, "job", "a secret of the tests", rank, size, 20s});
  return AnyStrategy::make<OwningAllReduce<NcclCommunicator>>(
      backend.device(), NcclOptions{.rank = rank, .size = size, .deadline = 60s}, Rendezvous(std::ref(meet)));
}

}  // namespace

TEST_CASE("two and four ranks train like a single process with the whole batch, op by op and captured") {
  if (testing::no_emulator()) return;
  const Graph graph = net();
  Emulated alone(testing::emulated_options());
  Solo solo;
  const Trained one = train(solo, alone, graph, options(), 0, rows);
  for (const int size : {2, 4})
    for (const bool captured : {false, true}) {
      CAPTURE(size);
      CAPTURE(captured);
      const int port = free_port();
      const auto said = emulator::run_ranks(size, [&](int rank) {
        Emulated backend(testing::emulated_options(captured));
        AnyStrategy strategy = make_strategy(backend, port, rank, size);
        // The ranks have different numbers of rows. The last of four ranks has no rows.
        const auto cut = [&](int i) { return size == 4 ? std::min<std::int64_t>(rows, i * 3) : i == 1 ? 3 : i * 4; };
        const Trained mine = train(strategy, backend, graph, options(), cut(rank), cut(rank + 1));
        require(largest_difference(mine, one) < 1e-5,
                "weights are off by " + std::to_string(largest_difference(mine, one)));
        for (std::size_t i = 0; i < one.losses.size(); ++i)
          require(std::fabs(mine.losses[i] - one.losses[i]) < 1e-5 * one.losses[i],
                  "loss " + std::to_string(i) + " is " + std::to_string(mine.losses[i]) + " and not " +
                      std::to_string(one.losses[i]));
        require(captured == (emulator::Device::instance().graph_launches > 0), "whether steps were captured");
      });
      for (const std::string& s : said) CHECK(s == "");
    }
}

TEST_CASE("logical ranks have the same bits on one, two and four GPUs") {
  if (testing::no_emulator()) return;
  const Graph graph = net();
  TrainerOptions o = options();
  o.logical_ranks = 4;
  const auto train_logical = [&](auto& strategy, Emulated& backend) {
    Trainer t(backend, strategy, graph, o);
    const int rank = strategy.membership().rank, size = strategy.membership().size;
    const Placement placed{.rank = rank, .world = size, .logical_ranks = 4};
    const std::int64_t row = graph[graph.images].shape.row_numel();
    Trained r;
    for (int i = 0; i < steps; ++i) {
      const auto all = testing::random_batch(graph, rows, static_cast<std::uint64_t>(i % 2));
      std::vector<BatchView> views;
      for (std::int64_t v = 0; v < placed.logical().count; ++v) {
        const Part p = part_of(rows, static_cast<int>(placed.logical().begin + v), 4);
        views.push_back({all.images.data() + p.begin * row, all.labels.data() + p.begin, p.count});
      }
      r.losses.push_back(t.reduce(t.step(views, rows, 0.05).wait().metrics).mean_loss());
    }
    r.weights = testing::fetch(backend, t.executor().parameter_data(), t.executor().parameters().bytes());
    return r;
  };
  Emulated alone(testing::emulated_options());
  Solo solo;
  const Trained one = train_logical(solo, alone), plain = train(solo, alone, graph, options(), 0, rows);
  CHECK(largest_difference(one, plain) < 1e-2);
  for (const int size : {2, 4})
    for (const bool captured : {false, true}) {
      CAPTURE(size);
      CAPTURE(captured);
      const int port = free_port();
      const auto said = emulator::run_ranks(size, [&](int rank) {
        Emulated backend(testing::emulated_options(captured));
        AnyStrategy strategy = make_strategy(backend, port, rank, size);
        const Trained mine = train_logical(strategy, backend);
        require(mine.weights == one.weights, "weights are off by " + std::to_string(largest_difference(mine, one)));
        require(mine.losses == one.losses, "losses are others");
      });
      for (const std::string& s : said) CHECK(s == "");
    }
}

TEST_CASE("one rank with strategy nccl trains like strategy solo") {
  if (testing::no_emulator()) return;
  const Graph graph = net();
  Emulated a(testing::emulated_options()), b(testing::emulated_options());
  Solo solo;
  const Trained alone = train(solo, a, graph, options(), 0, rows);
  AnyStrategy nccl = make_strategy(b, 0, 0, 1);
  const Trained same = train(nccl, b, graph, options(), 0, rows);
  CHECK(same.weights == alone.weights);
  CHECK(same.losses == alone.losses);
}

TEST_CASE("all ranks keep the same weights, statistics and flags, also in f16 with a loss scale") {
  if (testing::no_emulator()) return;
  const Graph graph = net_with_batch_norm();
  for (const DType t : {DType::f32, DType::f16}) {
    {
      // Compiles the kernels that both processes load.
      Emulated alone(testing::emulated_options());
      Solo solo;
      (void)train(solo, alone, graph, options(t), 0, rows);
    }
    const int port = free_port();
    const auto said = emulator::run_ranks(2, [&](int rank) {
      Emulated backend(testing::emulated_options(true));
      AnyStrategy strategy = make_strategy(backend, port, rank, 2);
      Trainer trainer(backend, strategy, graph, options(t));
      std::uint32_t flags = 0;
      for (int i = 0; i < steps; ++i) {
        const auto batch = testing::random_batch(graph, 4, static_cast<std::uint64_t>(10 * i + rank));
        flags |= trainer.step(batch.view(), 8, 0.05, rank == 1 && i == 3 ? step_flag::stop : 0).wait().flags;
      }
      require((flags & step_flag::stop) != 0, "rank 1's flag");
      auto& e = trainer.executor();
      // Hashes the bytes of both arenas, so that the ranks can compare them.
      auto bytes = testing::fetch(backend, e.parameter_data(), e.parameters().bytes());
      const auto states = testing::fetch(backend, e.state_data(), e.states().bytes());
      require(!states.empty(), "there are statistics");
      bytes.insert(bytes.end(), states.begin(), states.end());
      const auto hash = JobFacts::hash_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      std::vector<double> parts{static_cast<double>(hash >> 32), static_cast<double>(hash & 0xffffffffU)};
      const auto mine = parts;
      strategy.sum(parts);
      require(parts[0] == 2 * mine[0] && parts[1] == 2 * mine[1], "both ranks have the same state");
      // The trainer copies rank 0's state to all ranks.
      if (rank == 1) backend.zero(e.parameter_data(), e.parameters().bytes());
      if (rank == 0) trainer.counters().step = 77;
      trainer.synchronise();
      require(trainer.counters().step == 77, "rank 0's counters");
      require(testing::fetch(backend, e.parameter_data(), e.parameters().bytes()) ==
                  std::vector<std::byte>(bytes.begin(),
                                         bytes.begin() + static_cast<std::ptrdiff_t>(e.parameters().bytes())),
              "rank 0's weights");
    });
    for (const std::string& s : said) CHECK(s == "");
  }
}

TEST_CASE("a step that fails at any piece, or while it is replayed, leaves the state before the step") {
  if (testing::no_emulator()) return;
  {
    // Compiles the kernels that all processes load.
    Emulated alone(testing::emulated_options());
    Solo solo;
    Trainer t(alone, solo, testing::net_that_breaks(), testing::options_that_break());
    const auto batch = testing::random_batch(testing::net_that_breaks(), 4, 1);
    t.step(batch.view(), 4, 0.1);
  }
  // Rank 1 breaks a step. Piece -1: a captured step, which asks for no piece. 0, 1, ...: that piece of a step that is
  // started op by op; the next number breaks it after the last piece, while the device still works. 5: no step breaks.
  constexpr int pieces = 5;
  for (int piece = -1; piece <= pieces; ++piece) {
    CAPTURE(piece);
    const int port = free_port();
    const bool captured = piece < 0;
    const auto said = emulator::run_ranks(2, [&](int rank) {
      Emulated backend(testing::emulated_options(captured));
      TcpRendezvous meet({"127.0.0.1", port, "job", "a secret of the tests", rank, 2, 20s});
      NcclCommunicator c(backend.device(), {.rank = rank, .size = 2, .deadline = 1500ms}, std::ref(meet));
      const int whole = captured ? 7 : 3;
      testing::Breaking strategy(c, rank == 1 ? whole + 1 : 0, piece);
      const std::string wrong = testing::break_a_step(backend, strategy, 1, piece < pieces, whole);
      require(wrong.empty(), wrong);
      require(captured || strategy.pieces() <= pieces, std::to_string(strategy.pieces()) + " pieces");
    });
    for (const std::string& s : said) CHECK(s == "");
  }
}
