// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/comm/work.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/elastic.hpp>
#include <tutti/strategy/parameter_server/server/serve_generations.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/trainer.hpp>

#include "elastic_groups.hpp"
#include "job_images.hpp"
#include "tests/cluster/arbiter_harness.hpp"

namespace tutti::testing {

// A job with threads as members. Each member has its own trainer and trains a small net with fit(). An all-reduce or
// servers sum the gradients.
class ElasticJob {
 public:
  struct Ended {
    std::vector<double> weights;
    std::int64_t steps = 0;
    bool left = false, killed = false, interrupted = false, over = false;
    std::string error;
  };
  // A member calls it after each step. `member`: 0 for the member that started first.
  using Script = std::function<void(ElasticJob&, std::size_t member, const FitStep&)>;

  static constexpr std::int64_t global_batch = 12, steps_an_epoch = 20, samples = global_batch * steps_an_epoch - 5;

  ElasticJob(int founders, control::ArbiterOptions o, Script script)
      : harness_((o.workers = founders, o.elastic = true, o)),
        script_(std::move(script)),
        dying_(static_cast<std::size_t>(o.servers)) {
    for (std::size_t i = 0; i < dying_.size(); ++i) servers_.emplace_back([this, i] { server(i); });
    for (int i = 0; i < founders; ++i) join(false);
  }

  // Makes a server die at its next message. Any thread may call it.
  void kill_server(std::size_t i) { dying_[i] = true; }

  // Starts another member. Any thread may call it.
  void join() { join(true); }
  // Returns the number of members that the arbiter has admitted.
  [[nodiscard]] std::size_t alive() {
    return harness_.ask([](control::Arbiter& a) { return a.members().size(); });
  }
  void ask_to_leave(std::size_t member) {
    // The connection is looked up before the harness is locked: a joining member locks both, the harness last.
    const control::ConnectionId connection = connection_of(member);
    harness_.ask([&](control::Arbiter& a) { a.ask_to_leave(connection); });
  }
  // Returns whether the member has asked for admission.
  [[nodiscard]] bool knows(std::size_t member) { return harness_.knows(connection_of(member)); }
  // Waits until the member has asked for admission. Throws if it ends before that.
  void await_request(std::size_t member) {
    poll(
        [&] {
          if (has_ended(member)) fail<Error>("test", "a request for admission", "the end of the member");
          return knows(member);
        },
        std::chrono::minutes(2), "a request for admission");
  }
  [[nodiscard]] ArbiterHarness& harness() noexcept { return harness_; }

  std::vector<Ended> run() {
    for (std::size_t i = 0;; ++i) {
      std::thread t;
      {
        const std::lock_guard lock(mutex_);
        if (i == threads_.size()) break;
        t = std::move(threads_[i]);
      }
      t.join();
    }
    for (std::thread& t : servers_) t.join();
    return ended_;
  }

  std::int64_t epochs = 4, micro_batch = 5;
  // A member calls it before a piece of a step is summed.
  std::function<void(std::size_t member)> before_piece = [](std::size_t) {};
  // A member calls it after the sum of each piece of a step. Not in jobs with servers.
  std::function<void(std::size_t member)> after_piece = [](std::size_t) {};
  // A member calls it after each sum over all ranks.
  std::function<void(std::size_t member)> after_sum = [](std::size_t) {};
  // Whether a member asks to leave after its step.
  std::function<bool(std::size_t member)> leaves;
  // Whether a member waits at the end of this step until it knows that the members change after a step, or that the job
  // stops.
  std::function<bool(std::size_t member, std::int64_t step)> awaits_change = [](std::size_t, std::int64_t) {
    return false;
  };
  // A member calls it after each step.
  std::function<void(std::size_t member, Trainer&)> behind_step = [](std::size_t, Trainer&) {};
  std::string audit;  // folder of the audit log
  // These members set the options of the same name in FitOptions.
  std::int64_t batch_per_worker = 0, ramp_steps = 0;
  Schedule rate = schedule::Constant{0.05};
  // With logical ranks, the job trains in f32, and shares follow these seconds for one logical rank.
  int logical_ranks = 0;
  std::function<double(std::size_t member, std::int64_t step)> seconds_of_rank;
  std::atomic<int> share_reports{0};
  // The reports of all ranks 0, in their order.
  [[nodiscard]] std::vector<StepReport> step_reports() {
    const std::lock_guard lock(mutex_);
    return step_reports_;
  }
  [[nodiscard]] std::vector<EpochReport> epoch_reports() {
    const std::lock_guard lock(mutex_);
    return epoch_reports_;
  }
  // true: a function makes the sources, and records the number of ranks
  bool makes_sources = false;
  [[nodiscard]] std::set<int> sizes() {
    const std::lock_guard lock(mutex_);
    return sizes_;
  }

 private:
  void join(bool joins) {
    const std::lock_guard lock(mutex_);
    const std::size_t member = threads_.size();
    connections_.push_back(~control::ConnectionId{0});
    ended_.emplace_back();
    threads_.emplace_back([this, member, joins] { this->member(member, joins); });
  }
  [[nodiscard]] control::ConnectionId connection_of(std::size_t member) {
    const std::lock_guard lock(mutex_);
    return connections_[member];
  }

  [[nodiscard]] bool has_ended(std::size_t member) {
    const std::lock_guard lock(mutex_);
    return ended_[member].over;
  }

  // Keeps the reports of rank 0.
  class Reports : public FitListener {
   public:
    explicit Reports(ElasticJob& job) : job_(job) {}
    void shares(const SharesReport&) override { ++job_.share_reports; }
    void step(const StepReport& r) override {
      const std::lock_guard lock(job_.mutex_);
      job_.step_reports_.push_back(r);
    }
    void epoch(const EpochReport& r) override {
      const std::lock_guard lock(job_.mutex_);
      job_.epoch_reports_.push_back(r);
    }

   private:
    ElasticJob& job_;
  };

  [[nodiscard]] static Graph net() {
    Builder b(3, 8, 8);
    ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
    x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 8, .stride = 2}));
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
    return std::move(b).take();
  }

  void member(std::size_t me, bool joins) {
    std::size_t connection = 0;
    Ended end;
    try {
      std::unique_ptr<ControlChannel> channel;
      {
        const std::lock_guard lock(mutex_);
        connection = connections_[me] = channels_++;
        channel = harness_.channel();
      }
      train(me, joins, std::move(channel), end);
    } catch (const Killed&) {
      end.killed = true;
      harness_.ended(connection);
    } catch (const std::exception& e) {
      end.error = e.what();
      harness_.ended(connection);
    }
    end.over = true;
    const std::lock_guard lock(mutex_);
    ended_[me] = std::move(end);
  }
  // Opens a channel with a new connection.
  [[nodiscard]] std::unique_ptr<ControlChannel> channel_of(std::size_t& connection) {
    const std::lock_guard lock(mutex_);
    connection = channels_++;
    return harness_.channel();
  }
  void server(std::size_t me) {
    std::size_t connection = 0;
    try {
      const auto to_arbiter = channel_of(connection);
      ElasticOptions how;
      how.start.rank = static_cast<int>(me);
      how.start.host = "h";
      ps::serve_generations(*to_arbiter, how, [&](const Assignment& a, ControlChannel&, InterruptFlag&) {
        ps::ServerOptions o;
        o.index = a.rank;
        o.servers = static_cast<int>(a.servers.size());
        o.workers = static_cast<int>(a.workers.size());
        o.generation = a.generation;
        return std::make_unique<ps::Server<MortalServerEnd>>(
            std::make_unique<MortalServerEnd>(servers_meet_.network(a), a.rank, dying_[me]), o);
      });
    } catch (const std::exception&) {
      harness_.ended(connection);
    }
  }
  void train(std::size_t me, bool joins, std::unique_ptr<ControlChannel> channel, Ended& end) {
    ElasticOptions how;
    how.start.rank = static_cast<int>(me);
    how.start.host = "h";
    how.start.new_worker = joins;
    const auto before = [this, me] { before_piece(me); };
    if (dying_.empty()) {
      const auto piece = [this, me] { after_piece(me); };
      const auto sum = [this, me] { after_sum(me); };
      ElasticThreads strategy(std::move(channel), how, ThreadGroupFactory{&meeting_, {before, piece, sum}});
      train_with(strategy, me, end);
    } else {
      Elastic<ServedGroupFactory> strategy(std::move(channel), how, ServedGroupFactory{&servers_meet_, before});
      train_with(strategy, me, end);
    }
  }
  template <class Strategy>
  void train_with(Strategy& strategy, std::size_t me, Ended& end) {
    ReferenceBackend backend;
    TrainerOptions o;
    o.compute = logical_ranks > 0 ? DType::f32 : DType::f64;
    o.logical_ranks = logical_ranks;
    o.optimizer = Sgd{0.9, true};
    o.first_bucket_bytes = 1 << 8;
    o.bucket_bytes = 1 << 12;
    o.micro_batch = micro_batch;
    Trainer trainer(backend, strategy, net(), o);
    const JobImages of{samples, global_batch, 8};
    Loader train(of.images(samples), of.train_options(strategy.rank(), strategy.size()));
    Loader test(of.images(JobImages::tests), of.test_options(strategy.rank(), strategy.size()));
    Reports reports(*this);
    CoordinatorOptions duties{.listeners = {&reports}};
    duties.audit = audit;
    Coordinator coordinator(trainer, duties);
    FitOptions f = of.fit_options(epochs);
    f.schedule = rate;
    f.batch_per_worker = batch_per_worker;
    f.ramp_steps = ramp_steps;
    if (leaves) f.leave_requested = [this, me] { return leaves(me); };
    if (logical_ranks > 0) {
      f.shares = Shares::measured;
      f.share_seconds = [this, me](std::int64_t step, std::int64_t ranks) {
        return static_cast<double>(ranks) * seconds_of_rank(me, step);
      };
    }
    f.after_step = [&](const FitStep& s) {
      behind_step(me, trainer);
      script_(*this, me, s);
      if (awaits_change(me, s.step))
        poll([&] { return strategy.change() == ElasticMembership::Change::after_step || strategy.stop_requested(); },
             std::chrono::minutes(2), "a change of members");
    };
    const MakeSources make = [&](const FitOptions& a, int rank, int size) {
      const std::lock_guard lock(mutex_);
      sizes_.insert(size);
      const JobImages now{samples, a.global_batch, 8};
      Sources made;
      made.train = std::make_unique<Loader>(of.images(samples), now.train_options(rank, size));
      made.test = std::make_unique<Loader>(of.images(JobImages::tests), now.test_options(rank, size));
      return made;
    };
    const FitResult result =
        makes_sources ? fit(trainer, make, coordinator, f) : fit(trainer, train, &test, coordinator, f);
    end.left = result.left;
    end.interrupted = result.interrupted;
    end.steps = result.counters.step;
    const void* const weights = trainer.executor().parameter_data();
    const std::size_t count = trainer.executor().parameters().count;
    if (const auto* f32 = static_cast<const float*>(weights); logical_ranks > 0)
      end.weights.assign(f32, f32 + count);
    else
      end.weights.assign(static_cast<const double*>(weights), static_cast<const double*>(weights) + count);
  }

  ArbiterHarness harness_;
  ThreadRendezvous meeting_;
  ServerNetworks servers_meet_;
  Script script_;
  std::deque<std::atomic<bool>> dying_;  // for each server: whether it shall die
  std::vector<std::thread> servers_;
  std::mutex mutex_;
  std::vector<std::thread> threads_;
  std::vector<control::ConnectionId> connections_;
  control::ConnectionId channels_ = 0;
  std::vector<Ended> ended_;
  std::set<int> sizes_;
  std::vector<StepReport> step_reports_;
  std::vector<EpochReport> epoch_reports_;
};

}  // namespace tutti::testing
