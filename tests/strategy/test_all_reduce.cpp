// SPDX-License-Identifier: MIT
// Tests several ranks, as threads, that train one model: the result is that of one rank with the whole batch.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/state_replica.hpp>
#include <tutti/train/trainer.hpp>

using namespace tutti;

namespace {

constexpr std::int64_t size = 8, classes = 4;
using Strategy = AllReduce<ThreadCommunicator>;

Graph net() {
  Builder b(3, size, size);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 16}));
  x = b.relu("relu2", nn::conv(b, "conv2", x, {.out = 16, .stride = 2}));
  x = b.relu("relu3", nn::conv(b, "conv3", x, {.out = 16}));
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), classes, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

struct Data {
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
  explicit Data(std::int64_t rows) {
    Rng rng(3, Purpose::user);
    labels.resize(static_cast<std::size_t>(rows));
    for (auto& l : labels) l = static_cast<std::int32_t>(rng.below(classes));
    images.resize(static_cast<std::size_t>(rows * 3 * size * size));
    for (auto& i : images) i = static_cast<std::uint8_t>(rng.below(256));
  }
  [[nodiscard]] BatchView view(std::int64_t begin, std::int64_t end) const {
    return {images.data() + begin * 3 * size * size, labels.data() + begin, end - begin};
  }
};

struct Run {
  std::vector<double> losses;
  std::vector<std::byte> weights;
};

TrainerOptions options(DType compute) {
  TrainerOptions o;
  o.compute = compute;
  o.optimizer = Sgd{0.9, true};
  // Makes many buckets of a few slices.
  o.first_bucket_bytes = 1 << 8;
  o.bucket_bytes = 1 << 12;
  return o;
}

template <class B, class S>
Run train(B& backend, S& strategy, const TrainerOptions& o, std::int64_t begin, std::int64_t end, const Data& data,
          int parts = 1) {
  Trainer t(backend, strategy, net(), o);
  Run run;
  const auto rows = static_cast<std::int64_t>(data.labels.size());
  for (int step = 0; step < 20; ++step) {
    std::vector<BatchView> micro_batches;
    for (int p = 0; p < parts; ++p) {
      const std::int64_t n = end - begin;
      micro_batches.push_back(data.view(begin + n * p / parts, begin + n * (p + 1) / parts));
    }
    const Metrics m = t.step(micro_batches, rows, 0.01).wait().metrics;
    run.losses.push_back(t.reduce(m).mean_loss());
  }
  run.weights.resize(t.executor().parameters().bytes());
  std::memcpy(run.weights.data(), t.executor().parameter_data(), run.weights.size());
  return run;
}

// Trains a model on ranks with unequal parts of the batch. The last of four ranks has no rows.
template <class B>
std::vector<Run> train_ranks(int ranks, const TrainerOptions& o, const Data& data, int parts = 1) {
  ThreadGroup group(ranks);
  std::vector<Run> runs(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  const auto rows = static_cast<std::int64_t>(data.labels.size());
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      ThreadCommunicator c(group, r);
      Strategy s(c);
      B backend;
      const auto cut = [&](int i) {
        return ranks == 4 ? std::min<std::int64_t>(rows, i * rows / 3) : rows * i / ranks;
      };
      runs[static_cast<std::size_t>(r)] = train(backend, s, o, cut(r), cut(r + 1), data, parts);
    });
  for (auto& t : threads) t.join();
  return runs;
}

template <class T>
double largest_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  double d = 0;
  for (std::size_t i = 0; i < a.size(); i += sizeof(T)) {
    T x, y;
    std::memcpy(&x, a.data() + i, sizeof x);
    std::memcpy(&y, b.data() + i, sizeof y);
    d = std::max(d, std::abs(static_cast<double>(x) - static_cast<double>(y)));
  }
  return d;
}

}  // namespace

TEST_CASE("training with K ranks in f64 gives the weights of one rank within 1e-12") {
  const Data data(12);
  ReferenceBackend backend;
  Solo solo;
  const Run one = train(backend, solo, options(DType::f64), 0, 12, data);
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    for (const int parts : {1, 2}) {
      const auto runs = train_ranks<ReferenceBackend>(ranks, options(DType::f64), data, parts);
      for (const Run& r : runs) {
        CHECK(largest_difference<double>(r.weights, one.weights) < 1e-12);
        CHECK(r.weights == runs[0].weights);
        for (std::size_t i = 0; i < r.losses.size(); ++i)
          CHECK(r.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("training with K ranks in f32 gives the losses of one rank within 1e-6") {
  const Data data(12);
  CpuBackend backend({1});
  Solo solo;
  const Run one = train(backend, solo, options(DType::f32), 0, 12, data);
  for (const int ranks : {2, 4})
    for (const Run& r : train_ranks<CpuBackend>(ranks, options(DType::f32), data))
      for (std::size_t i = 0; i < r.losses.size(); ++i)
        CHECK(std::abs(r.losses[i] - one.losses[i]) <= 1e-6 * std::abs(one.losses[i]));
}

TEST_CASE("gradient clipping uses the norm over all buckets") {
  const Data data(12);
  auto o = options(DType::f64);
  o.clip_norm = 0.05;
  ReferenceBackend backend;
  Solo solo;
  const Run one = train(backend, solo, o, 0, 12, data);
  for (const Run& r : train_ranks<ReferenceBackend>(3, o, data))
    CHECK(largest_difference<double>(r.weights, one.weights) < 1e-12);
}

namespace {

// Runs f(trainer) on each rank.
void with_trainers(int ranks, const TrainerOptions& o, const std::function<void(Trainer&)>& f) {
  ThreadGroup group(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      ThreadCommunicator c(group, r);
      Strategy s(c);
      ReferenceBackend backend;
      Trainer t(backend, s, net(), o);
      f(t);
    });
  for (auto& t : threads) t.join();
}

}  // namespace

TEST_CASE("if one rank sets a flag, all ranks see the flag in the same step") {
  const Data data(12);
  for (const std::uint32_t flag : {step_flag::stop, step_flag::membership, step_flag::stop | step_flag::membership})
    with_trainers(3, options(DType::f32), [&](Trainer& t) {
      for (int step = 0; step < 4; ++step) {
        const bool mine = step == 2 && t.strategy().rank() == 1;
        CHECK(t.step(data.view(0, 4), 12, 0.01, mine ? flag : 0).flags() == (step == 2 ? flag : 0U));
      }
    });
}

TEST_CASE("a loss that is not finite on one rank stops all ranks with unchanged weights") {
  const Data data(12);
  with_trainers(3, options(DType::f32), [&](Trainer& t) {
    t.step(data.view(0, 4), 12, 0.01);
    std::vector<std::byte> before(t.executor().parameters().bytes()), after(before.size());
    std::memcpy(before.data(), t.executor().parameter_data(), before.size());
    if (t.strategy().rank() == 2) {
      // Breaks the weights of this rank, and with them its loss.
      static_cast<float*>(t.executor().parameter_data())[0] = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(before.data(), t.executor().parameter_data(), before.size());
      t.executor().parameters_changed();
    }
    CHECK_THROWS_AS(t.step(data.view(0, 4), 12, 0.01), NotFiniteError);
    std::memcpy(after.data(), t.executor().parameter_data(), after.size());
    CHECK(std::memcmp(before.data(), after.data(), before.size()) == 0);
  });
}

TEST_CASE("ranks with different options or nets do not start") {
  ThreadGroup group(2);
  std::vector<std::thread> threads;
  std::vector<std::string> said(2);
  for (std::size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      ThreadCommunicator c(group, static_cast<int>(r));
      Strategy s(c);
      ReferenceBackend backend;
      auto o = options(DType::f32);
      o.must_agree.add("--data", "cifar10 of 50000");
      if (r == 1) o.weight_decay = 0.5;
      try {
        Trainer t(backend, s, net(), o);
      } catch (const UsageError& e) {
        said[r] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  CHECK(said[0] == said[1]);
  CHECK(said[0].find("weight decay") != std::string::npos);
  CHECK(said[0].find("rank 1") != std::string::npos);
}

TEST_CASE("all ranks continue from rank 0's state") {
  const Data data(12);
  with_trainers(3, options(DType::f32), [&](Trainer& t) {
    if (t.strategy().rank() == 0) {
      static_cast<float*>(t.executor().parameter_data())[0] = 0.125F;
      t.counters().step = 7;
    }
    t.synchronise();
    CHECK(static_cast<const float*>(t.executor().parameter_data())[0] == 0.125F);
    CHECK(t.counters().step == 7);
  });
}

namespace {

// Wraps the real strategy. For each bucket it records whether the gradient that becomes final last is still missing.
struct Watching {
  Strategy s;
  const float* last_gradient = nullptr;
  std::vector<std::size_t> order{};  // the indices of the buckets
  int during_backward = 0;           // buckets that arrived before the last gradient was final

  static constexpr StrategyTraits traits{};
  [[nodiscard]] Membership membership() const { return s.membership(); }
  [[nodiscard]] std::string name() const { return s.name(); }
  std::span<std::byte> allocate(std::size_t n) { return s.allocate(n); }
  void attach(const ArenaLayout& l, const JobFacts& f) { s.attach(l, f); }
  void synchronise(std::span<StateSpan> state) { s.synchronise(state); }
  Work reduce(const Piece& piece) {
    if (piece.kind == Piece::Kind::gradients) order.push_back(piece.index);
    if (last_gradient != nullptr && std::isnan(*last_gradient)) ++during_backward;
    return s.reduce(piece);
  }
  void finish() { s.finish(); }
  void sum(std::span<double> v) { s.sum(v); }
  void abort(const std::string& why, ExitCode code) noexcept { s.abort(why, code); }
};

}  // namespace

TEST_CASE("ranks read missing state from windows, or receive messages with the state if windows are impossible") {
  constexpr std::size_t bytes = std::size_t{64} << 10;
  for (const bool reachable : {true, false}) {
    CAPTURE(reachable);
    ThreadGroup group(3);
    std::array<ProcessWindows, 3> windows;
    std::string why;
    // Ranks 1 and 2 have the state, and rank 0 is new. The name of rank 1's window leads other ranks to a decoy, so
    // that the test can tell data from the window from data in messages.
    const auto decoy = windows[1].make(bytes, why);
    REQUIRE(decoy != nullptr);
    std::memset(decoy->bytes().data(), 9, bytes);
    std::array<std::vector<std::byte>, 3> here;
    std::array<std::int64_t, 3> beside{1, 2, 2};
    std::array<bool, 3> took{};
    std::vector<std::thread> ranks;
    for (std::size_t r = 0; r < 3; ++r)
      ranks.emplace_back([&, r] {
        ThreadCommunicator c(group, static_cast<int>(r));
        Strategy s(c);
        s.set_authority(1);
        std::string error;
        StateReplica own{r == 0, windows[r].make(bytes, error), {}};
        std::memset(own.window->bytes().data(), r == 0 ? 1 : 7, bytes);
        own.name = windows[r].name_of(r == 1 ? *decoy : *own.window);
        if (!reachable) own.name.number = 77;
        std::array<StateSpan, 3> state{StateSpan{"first", DType::u8, {1000}, own.window->bytes().first(1000)},
                                       {"rest", DType::u8, {bytes - 1000}, own.window->bytes().subspan(1000)},
                                       {"beside", DType::i64, {1}, std::as_writable_bytes(std::span(&beside[r], 1))}};
        took[r] = s.take_state(state, own);
        here[r].assign(own.window->bytes().begin(), own.window->bytes().end());
      });
    for (auto& t : ranks) t.join();
    CHECK(here[0] == std::vector<std::byte>(bytes, static_cast<std::byte>(reachable ? 9 : 7)));
    for (const std::size_t r : {1U, 2U}) CHECK(here[r] == std::vector<std::byte>(bytes, std::byte{7}));
    CHECK(beside == std::array<std::int64_t, 3>{2, 2, 2});
    CHECK(took == std::array<bool, 3>{true, false, false});
  }
}

TEST_CASE("the first bucket is sent before the backward pass ends") {
  const Data data(8);
  ThreadGroup group(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      ThreadCommunicator c(group, r);
      Watching s{Strategy(c)};
      ReferenceBackend backend;
      Trainer t(backend, s, net(), options(DType::f32));
      const auto& layout = t.executor().parameters();
      auto* gradients = static_cast<float*>(t.executor().gradient_data());
      s.last_gradient = gradients + layout.slices.back().offset;
      for (std::size_t i = 0; i < layout.count; ++i) gradients[i] = std::numeric_limits<float>::quiet_NaN();
      t.step(data.view(0, 4), 8, 0.01);
      CHECK(s.order.size() > 2);
      for (std::size_t i = 0; i < s.order.size(); ++i) CHECK(s.order[i] == i);
      CHECK(s.during_backward > 0);
      CHECK(s.during_backward < static_cast<int>(s.order.size()));
    });
  for (auto& t : threads) t.join();
}
