// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/elastic.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/trainer.hpp>

#include "job/office.hpp"

namespace tutti::testing {

// Where the members of a generation, threads of this process, find each other.
class ThreadMeeting {
 public:
  [[nodiscard]] std::shared_ptr<ThreadGroup> group(std::uint64_t generation, std::size_t size) {
    const std::lock_guard lock(mutex_);
    auto& g = groups_[generation];
    if (!g) g = std::make_shared<ThreadGroup>(static_cast<int>(size));
    return g;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<ThreadGroup>> groups_;
};

struct HeldThreadGroup {
  std::shared_ptr<ThreadGroup> held_group;
};
class ThreadMember : private HeldThreadGroup, public OwningAllReduce<ThreadCommunicator> {
 public:
  using Base = OwningAllReduce<ThreadCommunicator>;
  // before_piece: called before each piece of each step.
  ThreadMember(std::shared_ptr<ThreadGroup> group, int rank, InterruptFlag& flag, std::function<void()> before_piece)
      : HeldThreadGroup{std::move(group)},
        Base(*held_group, rank),
        flag_(flag),
        before_piece_(std::move(before_piece)) {
    flag_.watch([this] { communicator().interrupt(); });
  }
  ~ThreadMember() { flag_.watch({}); }
  ThreadMember(const ThreadMember&) = delete;
  ThreadMember& operator=(const ThreadMember&) = delete;
  Work reduce(const Piece& piece) {
    try {
      before_piece_();
    } catch (...) {
      flag_.raise("this rank ends");
      throw;
    }
    return Base::reduce(piece);
  }

 private:
  InterruptFlag& flag_;
  std::function<void()> before_piece_;
};
static_assert(DistributedStrategy<ThreadMember>);

struct FormThreads {
  ThreadMeeting* meeting;
  std::function<void()> before_piece;
  [[nodiscard]] std::unique_ptr<ThreadMember> operator()(const Assignment& a, ControlChannel&,
                                                         InterruptFlag& flag) const {
    return std::make_unique<ThreadMember>(meeting->group(a.generation, a.workers.size()), a.rank, flag, before_piece);
  }
};
using ElasticThreads = Elastic<FormThreads>;
static_assert(DistributedStrategy<ElasticThreads>);

// What ends a member as a signal would: nobody is told.
struct Killed : std::exception {};

// A job of threads, each with a trainer of its own, that train a small net with fit().
class ElasticJob {
 public:
  struct Ended {
    std::vector<double> weights;
    std::int64_t steps = 0;
    bool left = false, killed = false;
    std::string error;
  };
  // Of a member, by the number with which it was started, behind a step.
  using Script = std::function<void(ElasticJob&, std::size_t member, const FitStep&)>;

  static constexpr std::int64_t global_batch = 12, steps_an_epoch = 20, samples = global_batch * steps_an_epoch - 5;

  ElasticJob(int founders, control::ArbiterOptions o, Script script)
      : office_((o.workers = founders, o.elastic = true, o)), script_(std::move(script)) {
    for (int i = 0; i < founders; ++i) join(false);
  }

  // Starts another member; from any thread.
  void join() { join(true); }
  // How many train, as far as the arbiter knows.
  [[nodiscard]] std::size_t alive() {
    return office_.ask([](control::Arbiter& a) { return a.members().size(); });
  }
  void ask_to_leave(std::size_t member) {
    office_.ask([&](control::Arbiter& a) { a.ask_to_leave(seat_of(member)); });
  }
  [[nodiscard]] Office& office() noexcept { return office_; }

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
    return ended_;
  }

  std::int64_t epochs = 4;
  // Of a member, before a piece of a step is summed.
  std::function<void(std::size_t member)> before_piece = [](std::size_t) {};
  std::string audit;  // folder
  // As in FitOptions.
  std::int64_t batch_per_worker = 0, ramp_steps = 0;
  Schedule rate = schedule::Constant{0.05};
  // The sources are made by a function, which notes for how many ranks.
  bool makes_sources = false;
  [[nodiscard]] std::set<int> sizes() {
    const std::lock_guard lock(mutex_);
    return sizes_;
  }

 private:
  void join(bool joins) {
    const std::lock_guard lock(mutex_);
    const std::size_t member = threads_.size();
    seats_.push_back(0);
    ended_.emplace_back();
    threads_.emplace_back([this, member, joins] { this->member(member, joins); });
  }
  [[nodiscard]] control::Seat seat_of(std::size_t member) {
    const std::lock_guard lock(mutex_);
    return seats_[member];
  }

  [[nodiscard]] static Graph net() {
    Builder b(3, 8, 8);
    ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
    x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 8, .stride = 2}));
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
    return std::move(b).take();
  }

  void member(std::size_t me, bool joins) {
    std::size_t seat = 0;
    Ended end;
    try {
      std::unique_ptr<ControlChannel> channel;
      {
        const std::lock_guard lock(mutex_);
        seat = seats_[me] = channels_++;
        channel = office_.channel();
      }
      train(me, joins, std::move(channel), end);
    } catch (const Killed&) {
      end.killed = true;
      office_.ended(seat);
    } catch (const std::exception& e) {
      end.error = e.what();
      office_.ended(seat);
    }
    const std::lock_guard lock(mutex_);
    ended_[me] = std::move(end);
  }
  void train(std::size_t me, bool joins, std::unique_ptr<ControlChannel> channel, Ended& end) {
    ReferenceBackend backend;
    ElasticOptions how;
    how.start.rank = static_cast<int>(me);
    how.start.host = "h";
    how.start.new_worker = joins;
    ElasticThreads strategy(std::move(channel), how, FormThreads{&meeting_, [this, me] { before_piece(me); }});
    TrainerOptions o;
    o.compute = DType::f64;
    o.optimizer = Sgd{0.9, true};
    o.first_bucket_bytes = 1 << 8;
    o.bucket_bytes = 1 << 12;
    o.micro_batch = 5;
    Trainer trainer(backend, strategy, net(), o);
    SyntheticOptions images{.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true};
    const Placement mine{global_batch, std::max(strategy.rank(), 0), strategy.size()};
    Loader train(Synthetic(images), {.placement = mine, .seed = 9, .threads = 0});
    images.size = 24;
    Loader test(Synthetic(images), {.placement = mine, .shuffle = false, .one_pass = true, .threads = 0});
    ChiefDuties duties;
    duties.audit = audit;
    Chief chief(trainer, duties);
    FitOptions f{.epochs = epochs, .global_batch = global_batch, .report_every = 7};
    f.schedule = rate;
    f.batch_per_worker = batch_per_worker;
    f.ramp_steps = ramp_steps;
    f.after_step = [&](const FitStep& s) { script_(*this, me, s); };
    const MakeSources make = [&](const FitOptions& a, int rank, int size) {
      const std::lock_guard lock(mutex_);
      sizes_.insert(size);
      const Placement here{a.global_batch, rank, size};
      LoaderOptions l{.placement = here, .seed = 9, .threads = 0};
      Sources made;
      images.size = samples;
      made.train = std::make_unique<Loader>(Synthetic(images), l);
      images.size = 24;
      l.shuffle = false;
      l.one_pass = true;
      made.test = std::make_unique<Loader>(Synthetic(images), l);
      return made;
    };
    const FitResult result = makes_sources ? fit(trainer, make, chief, f) : fit(trainer, train, &test, chief, f);
    end.left = result.left;
    end.steps = result.counters.step;
    const auto* v = static_cast<const double*>(trainer.executor().parameter_data());
    end.weights.assign(v, v + trainer.executor().parameters().count);
  }

  Office office_;
  ThreadMeeting meeting_;
  Script script_;
  std::mutex mutex_;
  std::vector<std::thread> threads_;
  std::vector<control::Seat> seats_;
  control::Seat channels_ = 0;
  std::vector<Ended> ended_;
  std::set<int> sizes_;
};

}  // namespace tutti::testing
