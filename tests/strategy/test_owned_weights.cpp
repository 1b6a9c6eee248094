// SPDX-License-Identifier: MIT
// Training where somebody else owns the weights: workers push and pull, each for itself, through the same trainer and
// the same fit() as everywhere.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/plan.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/optimizer_state.hpp>
#include <tutti/train/server_update.hpp>
#include <tutti/train/trainer.hpp>

using namespace tutti;

namespace {

// Owns the weights of all workers of this process.
class Owner {
 public:
  explicit Owner(std::function<void(const ServerPart&)> update) : update_(std::move(update)) {}

  // The first one's state is everybody's.
  void synchronise(std::span<StateSpan> state) {
    const std::lock_guard lock(mutex_);
    for (StateSpan& s : state) {
      auto& mine = state_[s.name];
      if (mine.empty())
        mine.assign(s.bytes.begin(), s.bytes.end());
      else
        std::memcpy(s.bytes.data(), mine.data(), mine.size());
    }
  }
  void pull(std::span<StateSpan> state) {
    const std::lock_guard lock(mutex_);
    for (StateSpan& s : state) std::memcpy(s.bytes.data(), state_.at(s.name).data(), s.bytes.size());
  }
  std::int64_t exchange(const Push& p) {
    const std::lock_guard lock(mutex_);
    if (p.index == 0) ++steps_;
    const std::size_t unit = size_of(p.dtype), at = p.begin * unit;
    ServerPart part{p.dtype,
                    p.begin,
                    p.begin + p.gradients.size() / unit,
                    state_.at("weights").data() + at,
                    {},
                    p.gradients.data(),
                    steps_ - 1};
    if (state_.contains("momentum.weights")) part.slots[0] = state_["momentum.weights"].data() + at;
    if (state_.contains("exp_avg.weights")) part.slots[0] = state_["exp_avg.weights"].data() + at;
    if (state_.contains("exp_avg_sq.weights")) part.slots[1] = state_["exp_avg_sq.weights"].data() + at;
    update_(part);
    std::memcpy(p.weights.data(), part.weights, p.weights.size());
    return steps_;
  }
  void read(const Push& p) {
    const std::lock_guard lock(mutex_);
    std::memcpy(p.weights.data(), state_.at("weights").data() + p.begin * size_of(p.dtype), p.weights.size());
  }
  std::atomic<std::int64_t> at_work{1};  // workers
  [[nodiscard]] std::int64_t steps() {
    const std::lock_guard lock(mutex_);
    return steps_;
  }

 private:
  std::mutex mutex_;
  std::function<void(const ServerPart&)> update_;
  std::map<std::string, std::vector<std::byte>> state_;
  std::int64_t steps_ = 0;
};

class Worker {
 public:
  static constexpr StrategyTraits traits{.owns_weights = true};
  Worker(Owner& o, int rank, int size) : o_(o), rank_(rank), size_(size) {}
  [[nodiscard]] Membership membership() const { return {rank_, size_, 0}; }
  [[nodiscard]] std::string name() const { return "owner in this process"; }
  std::span<std::byte> allocate(std::size_t) { return {}; }
  void attach(const ArenaLayout&, const JobFacts&) {}
  void synchronise(std::span<StateSpan> state) {
    o_.synchronise(state);
    progress_ = o_.steps();
  }
  Work reduce(const Piece&) { fail<UsageError>("worker", "pushes", "a reduction"); }
  Work exchange(const Push& p) {
    ++pushes;
    progress_ = o_.exchange(p);
    return {};
  }
  void pull(std::span<StateSpan> state) {
    o_.pull(state);
    progress_ = o_.steps();
  }
  [[nodiscard]] std::int64_t progress() const { return progress_; }
  [[nodiscard]] std::int64_t others_at_work() const { return o_.at_work - (ended_ ? 0 : 1); }
  [[nodiscard]] bool came_late() const { return late; }
  void end() {
    ended_ = true;
    --o_.at_work;
  }
  void finish() {}
  void sum(std::span<double>) {}
  void abort(const std::string&, ExitCode) noexcept {}
  int pushes = 0;
  bool late = false;

 private:
  Owner& o_;
  int rank_, size_;
  bool ended_ = false;
  std::int64_t progress_ = 0;
};
static_assert(DistributedStrategy<Worker>);

// Has what the owner has, and changes nothing of it.
struct Reader : Worker {
  Reader(Owner& o, int rank, int size) : Worker(o, rank, size), owner(o) {}
  Work exchange(const Push& p) {
    owner.read(p);
    return {};
  }
  Owner& owner;
};
static_assert(DistributedStrategy<Reader>);

struct NotSaid : Worker {  // has what the traits do not tell of
  static constexpr StrategyTraits traits{};
};
struct NoPull : Worker {
  static constexpr StrategyTraits traits{.owns_weights = true};
  void pull() {}
};
static_assert(!DistributedStrategy<NotSaid> && !DistributedStrategy<NoPull>);

Graph net() {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {.relu = true});
  x = nn::conv_bn(b, "conv2", "bn2", x, {.out = 8, .stride = 2}, {.relu = true});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}
TrainerOptions options(AnyOptimizer optimizer) {
  TrainerOptions o;
  o.optimizer = std::move(optimizer);
  o.first_bucket_bytes = 1 << 8;
  o.bucket_bytes = 1 << 11;
  return o;
}
const Schedule rates = schedule::Poly(0.05, {.power = 2, .end = 0});

// An owner of the weights of net().
struct Server {
  Server(const TrainerOptions& o, std::int64_t steps_per_epoch, std::int64_t total, std::int64_t batch)
      : layout(parameter_layout(differentiate(fuse(net())), DType::f32)),
        update(backend, make_update_rules(layout, o, layout.slices.size()), o.loss_scale,
               [=](std::int64_t step) {
                 return rates(SchedulePoint{step, steps_per_epoch, total, batch, 1});
               }),
        owner(std::ref(update)) {}
  ReferenceBackend backend;
  ArenaLayout layout;
  ServerUpdate update;
  Owner owner;
};

std::vector<std::byte> state_of(Trainer& t) {
  t.commit();
  std::vector<std::byte> all;
  for (const bool optimizer : {false, true})
    for (const StateSpan& s : t.committed_tensors(optimizer)) all.insert(all.end(), s.bytes.begin(), s.bytes.end());
  return all;
}

constexpr std::int64_t samples = 96, batch = 12;
Loader loader(int rank = 0, int world = 1) {
  return Loader(Synthetic({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true}),
                {.placement = {batch, rank, world}, .seed = 9, .threads = 0});
}

}  // namespace

TEST_CASE("one worker whose weights somebody else owns trains to the same bits as one that has them") {
  for (const AnyOptimizer& optimizer : {AnyOptimizer(Sgd{0.9, true}), AnyOptimizer(Adamw{})})
    for (const std::int64_t micro_batch : {0, 5}) {
      CAPTURE(optimizer.slots());
      CAPTURE(micro_batch);
      TrainerOptions o = options(optimizer);
      o.micro_batch = micro_batch;
      o.loss_scale = 4;
      o.ema_decay = 0.9;
      FitOptions f;
      f.epochs = 3;
      f.global_batch = batch;
      f.schedule = rates;
      std::vector<std::byte> states[2];
      EvaluationReport reports[2];
      for (const bool owned : {false, true}) {
        ReferenceBackend backend;
        Loader train = loader(), test = loader();
        const auto run = [&](auto& strategy) {
          Trainer t(backend, strategy, net(), o);
          t.synchronise();
          const FitResult r = fit(t, train, &test, f);
          CHECK(r.counters.step == 24);
          reports[owned ? 1 : 0] = *r.last->test;
          states[owned ? 1 : 0] = state_of(t);
        };
        if (owned) {
          Server server(o, samples / batch, 3 * samples / batch, batch);
          Worker w(server.owner, 0, 1);
          run(w);
          CHECK(server.owner.steps() == 24);
        } else {
          Solo solo;
          run(solo);
        }
      }
      CHECK(states[0] == states[1]);
      CHECK(reports[0].loss == reports[1].loss);
    }
}

TEST_CASE("workers that wait for no other one count each other's steps and see every sample once an epoch") {
  const TrainerOptions o = options(Sgd{0.9, false});
  constexpr int workers = 3, epochs = 8;
  Server server(o, workers * samples / batch, epochs * workers * samples / batch, batch);
  server.owner.at_work = workers;
  std::vector<std::thread> threads;
  std::vector<FitResult> results(workers);
  std::vector<std::string> errors(workers);
  std::vector<int> evaluated(workers);
  for (int r = 0; r < workers; ++r)
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      try {
        CpuBackend backend({1, {}, {}});
        Worker w(server.owner, r, workers);
        Trainer t(backend, w, net(), o);
        t.synchronise();
        Loader train = loader(r, workers), test = loader();
        FitOptions f;
        f.epochs = epochs;
        f.global_batch = batch;
        f.schedule = rates;
        f.after_epoch = [&](const EpochReport& e) { evaluated[i] += e.test ? 1 : 0; };
        results[i] = fit(t, train, &test, f);
        w.end();
      } catch (const std::exception& e) {
        errors[i] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  std::int64_t last = 0;
  for (std::size_t i = 0; i < workers; ++i) {
    CHECK(errors[i] == "");
    CHECK(results[i].counters.samples == epochs * samples);
    CHECK(evaluated[i] == (i == 0 ? epochs : 0));
    last = std::max(last, results[i].counters.step);
  }
  CHECK(results[0].counters.step == last);  // it saves the steps of all
  CHECK(server.owner.steps() == workers * epochs * samples / batch);
  CHECK(last == server.owner.steps());
  // What all of them have trained, whichever was the last, with the statistics of each batch.
  CpuBackend backend({1, {}, {}});
  Reader reader(server.owner, 0, workers);
  Trainer t(backend, reader, net(), o);
  t.synchronise();
  Loader train = loader();
  for (std::int64_t i = 0; i < samples / batch; ++i) t.step(train.next(), 0);
  const Metrics m = t.take_metrics();
  CHECK(m.rows == samples);
  CHECK(m.mean_loss() < 1.2);  // of ln 4 at the start
}

namespace {

// Two workers of a server in one thread; the first one fits.
struct TwoWorkers {
  TrainerOptions o = options(Sgd{0.9, false});
  Server server{o, 8, 100, batch};
  Worker first{server.owner, 0, 2}, second{server.owner, 1, 2};
  ReferenceBackend backend;
  Trainer a{backend, first, net(), o}, b{backend, second, net(), o};
  Loader train_a = loader(0, 2), train_b = loader(1, 2);
  FitOptions f;
  TwoWorkers(std::int64_t epochs, std::int64_t steps) {
    f.epochs = epochs;
    f.global_batch = batch;
    f.max_steps = steps;
  }
};

}  // namespace

TEST_CASE("a worker stops when all workers together have done the steps") {
  TwoWorkers two(1000, 7);
  two.a.synchronise();
  two.b.synchronise();
  std::int64_t steps_of_b = 0;
  two.f.after_step = [&](const FitStep& s) {
    if (s.step >= 4) return;  // b's steps come between a's
    const Batch& batch_b = two.train_b.next();
    two.b.step(batch_b, 0.1);
    ++steps_of_b;
  };
  const FitResult r = fit(two.a, two.train_a, nullptr, two.f);
  CHECK(r.counters.step == 7);
  CHECK(steps_of_b == 2);
  CHECK(state_of(two.a) != std::vector<std::byte>{});
}

TEST_CASE("a worker that comes late goes on beside the others") {
  TwoWorkers two(4, 20);
  FitOptions& f = two.f;
  two.a.synchronise();
  (void)fit(two.a, two.train_a, nullptr, f);
  two.second.late = true;
  two.b.synchronise();
  f.max_steps = 0;
  std::vector<FitStep> steps;
  f.after_step = [&](const FitStep& s) { steps.push_back(s); };
  const FitResult r = fit(two.b, two.train_b, nullptr, f);
  // 20 steps of two workers are 10 of each, of which an epoch has 8.
  REQUIRE(steps.size() == 22);
  CHECK(steps[0].epoch == 2);
  CHECK(steps[0].step_in_epoch == 3);
  CHECK(r.counters.step == 42);
}

TEST_CASE("numbers that are not finite are not pushed") {
  const TrainerOptions o = options(Sgd{0.9, false});
  Server server(o, 8, 100, batch);
  Worker w(server.owner, 0, 1);
  ReferenceBackend backend;
  Trainer t(backend, w, net(), o);
  t.synchronise();
  Loader train = loader();
  t.step(train.next(), 0.1);
  const int pushes = w.pushes;
  CHECK(pushes > 2);
  const auto weights = [&] {
    t.pull();
    std::vector<float> all;
    for (const char* name : {"conv1.weight", "fc.weight", "fc.bias"}) {
      const Tensor<float> p = t.parameter(name);
      all.insert(all.end(), p.data(), p.data() + p.size());
    }
    return all;
  };
  const auto before = weights();
  // A bias that a hand broke; the servers have it as it was.
  const Slice* bias = t.executor().parameters().find("fc.bias");
  REQUIRE(bias != nullptr);
  float& b = static_cast<float*>(t.executor().parameter_data())[bias->offset];
  b = std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH_AS(t.step(train.next(), 0.1), doctest::Contains("finite loss"), NotFiniteError);
  CHECK(w.pushes == pushes);
  CHECK(weights() == before);
  CHECK(t.counters().step == 1);
}

TEST_CASE("what no server can do is refused before the first step") {
  Owner owner([](const ServerPart&) {});
  Worker w(owner, 0, 1);
  ReferenceBackend backend;
  const auto refuse = [&](const TrainerOptions& o, const char* what) {
    CHECK_THROWS_WITH_AS(Trainer(backend, w, net(), o), doctest::Contains(what), UsageError);
  };
  refuse(options(Lars{}), "got an optimizer that looks at whole tensors");
  TrainerOptions o = options(Sgd{});
  o.clip_norm = 1;
  refuse(o, "got a limit to the norm of all gradients");
  o = options(Sgd{});
  o.dynamic_loss_scale = true;
  refuse(o, "got a dynamic loss scale");
  Solo solo;
  AnyStrategy any = AnyStrategy::refer(solo);
  CHECK(!any.owns_weights());
  CHECK_THROWS_WITH_AS(static_cast<void>(any.progress()), doctest::Contains("one that owns the weights, got 'solo'"),
                       UsageError);
}

TEST_CASE("a strategy that is held twice has the traits of the one inside") {
  Solo solo;
  AnyStrategy inner = AnyStrategy::refer(solo);
  AnyStrategy outer = AnyStrategy::refer(inner);
  CHECK(!outer.reads_device_memory());
  CHECK(!outer.owns_weights());
}
