// SPDX-License-Identifier: MIT
// Tests that steps are complete or have no effect: ranks that survive a broken step have the state from before the
// step, whichever piece breaks it. The members of a job may change between any two steps.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/train/trainer.hpp>

#include "broken_step.hpp"
#include "changing_strategy.hpp"
#include "comm/thread_ranks.hpp"

using namespace tutti;

namespace {

// Returns the reports of three ranks on a step that rank 1 breaks at this piece.
std::vector<std::string> break_at(int piece, int micro_batches, bool breaks) {
  std::vector<std::string> said(3);
  run_ranks(3, [&](ThreadCommunicator& c) {
    CpuBackend backend({1});
    testing::Breaking strategy(c, c.rank() == 1 ? 4 : 0, piece);
    said[static_cast<std::size_t>(c.rank())] = testing::break_a_step(backend, strategy, micro_batches, breaks);
  });
  return said;
}

}  // namespace

TEST_CASE("a step that fails at any piece leaves the state of the previous step") {
  int pieces = 0;
  run_ranks(3, [&](ThreadCommunicator& c) {
    CpuBackend backend({1});
    testing::Breaking strategy(c, 0, 0);
    const std::string said = testing::break_a_step(backend, strategy, 1, false);
    if (!said.empty()) fail("test", "whole steps", said);
    if (c.rank() == 0) pieces = strategy.pieces();
  });
  CHECK(pieces > 3);  // one of them holds the statistics
  for (const int micro_batches : {1, 2})
    for (int piece = -2; piece <= pieces; ++piece) {
      CAPTURE(micro_batches);
      CAPTURE(piece);
      for (const std::string& said : break_at(piece, micro_batches, piece < pieces)) CHECK(said == "");
    }
}

TEST_CASE("a step that fails at any moment leaves each rank in the state before or after the step") {
  for (int round = 0; round < 8; ++round) {
    constexpr int ranks = 3;
    ThreadGroup group(ranks);
    // after: the state of each rank after each step. left: its last state.
    std::array<std::map<std::int64_t, std::vector<std::byte>>, ranks> after;
    std::array<std::vector<std::byte>, ranks> left;
    std::array<std::int64_t, ranks> at{};
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        const auto i = static_cast<std::size_t>(r);
        ThreadCommunicator c(group, r);
        AllReduce strategy(c);
        CpuBackend backend({1});
        Trainer t(backend, strategy, testing::net_that_breaks(), testing::options_that_break());
        std::thread other;
        if (r == round % ranks)
          other = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(3000 + 777 * round));
            c.interrupt();
          });
        const std::vector<std::int32_t> labels{0, 3, 1, 2};
        try {
          for (;;) {
            const auto images = testing::images_that_break(t.counters().step, r, 4);
            t.step({images.data(), labels.data(), 4}, 4 * ranks, 0.1);
            after[i][t.counters().step] = testing::state_of(t);
          }
        } catch (const CommunicationError&) {
        }
        if (other.joinable()) other.join();
        t.roll_back();
        at[i] = t.counters().step;
        left[i] = testing::state_of(t);
      });
    for (auto& t : threads) t.join();
    for (std::size_t i = 0; i < ranks; ++i) {
      CHECK(std::abs(at[i] - at[0]) <= 1);
      if (at[i] > 0) CHECK(left[i] == after[i][at[i]]);
      for (const auto& [step, state] : after[i])
        if (after[0].contains(step)) CHECK(state == after[0][step]);
    }
  }
}

namespace {

Graph net_without_statistics() {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 8}));
  x = b.relu("relu2", nn::conv(b, "conv2", x, {.out = 8, .stride = 2}));
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

constexpr std::int64_t global_batch = 12, steps_an_epoch = 40, samples = global_batch * steps_an_epoch - 5;

struct Phase {
  int ranks;
  std::int64_t until;  // the phase ends at this step
};
// Trains two epochs, in phases with different members. Returns rank 0's weights, and the samples that were seen in each
// epoch.
std::vector<double> train_in_phases(const std::vector<Phase>& phases, std::array<std::vector<std::int64_t>, 2>& seen) {
  std::size_t most = 0;
  std::vector<std::unique_ptr<ThreadGroup>> groups;
  for (const Phase& p : phases) {
    most = std::max(most, static_cast<std::size_t>(p.ranks));
    groups.push_back(std::make_unique<ThreadGroup>(p.ranks));
  }
  std::barrier all(static_cast<std::ptrdiff_t>(most));
  std::mutex mutex;
  std::vector<double> weights;
  std::vector<std::string> errors;
  std::vector<std::thread> threads;
  for (std::size_t w = 0; w < most; ++w)
    threads.emplace_back([&, w] {
      const int rank = static_cast<int>(w);
      ReferenceBackend backend;
      testing::Changing strategy;
      std::unique_ptr<Trainer> trainer;
      Loader loader(Synthetic({.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true}),
                    {.placement = {global_batch, 0, 1}, .seed = 9, .threads = 0});
      TrainerOptions o;
      o.compute = DType::f64;
      o.optimizer = Sgd{0.9, true};
      o.first_bucket_bytes = 1 << 8;
      o.bucket_bytes = 1 << 12;
      o.micro_batch = 5;  // so that one rank needs no more memory than four ranks do
      const void* gradients = nullptr;
      try {
        for (std::size_t p = 0; p < phases.size(); ++p) {
          all.arrive_and_wait();
          if (rank >= phases[p].ranks) continue;
          const bool stays = trainer != nullptr;
          strategy.join(*groups[p], rank);
          if (stays) {
            trainer->reform();
            if (trainer->executor().gradient_data() != gradients) fail("test", "the same arena", "another");
          } else {
            trainer = std::make_unique<Trainer>(backend, strategy, net_without_statistics(), o);
            gradients = trainer->executor().gradient_data();
            trainer->synchronise();
          }
          Counters& at = trainer->counters();
          loader.start({at.epoch, at.consumed}, {global_batch, rank, phases[p].ranks});
          while (at.step < phases[p].until && at.epoch < 2) {
            const Batch& b = loader.next();
            {
              const std::lock_guard lock(mutex);
              auto& list = seen[static_cast<std::size_t>(b.epoch)];
              list.insert(list.end(), b.indices.begin(), b.indices.end());
            }
            trainer->step(b, 0.05);
            at.epoch = b.after.epoch;
            at.consumed = b.after.consumed;
          }
          loader.release();
          if (rank > 0 || p + 1 < phases.size()) continue;
          const auto* v = static_cast<const double*>(trainer->executor().parameter_data());
          weights.assign(v, v + trainer->executor().parameters().count);
        }
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex);
        errors.emplace_back(e.what());
        all.arrive_and_drop();
      }
    });
  for (auto& t : threads) t.join();
  for (const auto& e : errors) FAIL(e);
  return weights;
}

}  // namespace

TEST_CASE("a job changes from one rank to two, four, three and one during an epoch") {
  std::array<std::vector<std::int64_t>, 2> seen_by_one, seen;
  const auto one = train_in_phases({{1, 1000}}, seen_by_one);
  const auto changing = train_in_phases({{1, 7}, {2, 15}, {4, 23}, {3, 31}, {1, 43}, {2, 1000}}, seen);
  REQUIRE(one.size() == changing.size());
  double most = 0;
  for (std::size_t i = 0; i < one.size(); ++i) most = std::max(most, std::abs(one[i] - changing[i]));
  CHECK(most < 1e-12);
  CHECK(most > 0);  // the sums have another order
  for (const auto& list : seen) {
    CHECK(list.size() == static_cast<std::size_t>(samples));
    CHECK(std::set(list.begin(), list.end()).size() == static_cast<std::size_t>(samples));
  }
}

TEST_CASE("a job continues with other members after a failed step") {
  // One of three ranks leaves the job in step 4. The two other ranks continue with a new rank.
  ThreadGroup before(3), after(3);
  std::barrier all(4);
  std::array<std::vector<std::byte>, 4> states;
  std::vector<std::thread> threads;
  std::array<std::string, 4> errors;
  for (std::size_t w = 0; w < 4; ++w)
    threads.emplace_back([&, w] {
      const std::vector<std::int32_t> labels{0, 3, 1, 2};
      CpuBackend backend({1});
      testing::Changing strategy;
      std::unique_ptr<Trainer> t;
      const auto step = [&](std::int64_t number) {
        const auto images = testing::images_that_break(number, strategy.membership().rank, 4);
        t->step({images.data(), labels.data(), 4}, 12, 0.1);
      };
      try {
        if (w < 3) {
          strategy.join(before, static_cast<int>(w));
          t = std::make_unique<Trainer>(backend, strategy, testing::net_that_breaks(), testing::options_that_break());
          for (int i = 1; i <= 3; ++i) step(i);
          try {
            if (w == 2) fail<CommunicationError>("rank 2", "to stay", "it leaves");
            step(4);
            errors[w] = "the step did not break";
          } catch (const CommunicationError&) {
            if (w == 2) strategy.leave();
          }
        }
        all.arrive_and_wait();
        if (w == 2) return;
        strategy.join(after, w == 3 ? 2 : static_cast<int>(w));
        if (t) {
          t->reform();
        } else {
          t = std::make_unique<Trainer>(backend, strategy, testing::net_that_breaks(), testing::options_that_break());
          t->synchronise();
        }
        if (t->counters().step != 3) errors[w] = "step " + std::to_string(t->counters().step);
        for (int i = 4; i <= 6; ++i) step(i);
        states[w] = testing::state_of(*t);
      } catch (const std::exception& e) {
        errors[w] = e.what();
        all.arrive_and_drop();
      }
    });
  for (auto& t : threads) t.join();
  for (const auto& e : errors) CHECK(e == "");
  // Computes the result of a run without a failure.
  std::vector<std::byte> whole;
  run_ranks(3, [&](ThreadCommunicator& c) {
    CpuBackend backend({1});
    AllReduce strategy(c);
    Trainer t(backend, strategy, testing::net_that_breaks(), testing::options_that_break());
    const std::vector<std::int32_t> labels{0, 3, 1, 2};
    for (int i = 1; i <= 6; ++i) {
      const auto images = testing::images_that_break(i, c.rank(), 4);
      t.step({images.data(), labels.data(), 4}, 12, 0.1);
    }
    if (c.rank() == 0) whole = testing::state_of(t);
  });
  CHECK(states[0] == whole);
  CHECK(states[1] == whole);
  CHECK(states[3] == whole);
}
