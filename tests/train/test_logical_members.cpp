// SPDX-License-Identifier: MIT
// Jobs with logical ranks whose members change, that are broken off, and that continue from a checkpoint.
#include <doctest/doctest.h>

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/train/checkpointing.hpp>

#include "data/temp_folder.hpp"
#include "logical_job.hpp"
#include "strategy/broken_step.hpp"
#include "strategy/changing_strategy.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

LogicalJob long_job() {
  LogicalJob j;
  j.options.logical_ranks = 3;
  j.options.optimizer = Sgd{0.9, true};
  j.options.ema_decay = 0.9;
  j.options.first_bucket_bytes = 1 << 8;
  j.options.bucket_bytes = 1 << 9;
  j.rows = {13, 13, 13, 5, 2, 13, 13, 13, 5, 2};
  return j;
}

struct Members {
  int world;
  std::size_t until;  // steps
};

// Runs the job with the members of one phase after the other. More processes than logical ranks are possible, because a
// trainer is made before its process joins the others. Returns the states of the members of the last phase.
std::vector<std::vector<std::byte>> run_phases(const LogicalJob& job, const std::vector<Members>& phases) {
  std::size_t most = 0;
  std::vector<std::unique_ptr<ThreadGroup>> groups;
  for (const Members& p : phases) {
    most = std::max(most, static_cast<std::size_t>(p.world));
    groups.push_back(std::make_unique<ThreadGroup>(p.world));
  }
  std::barrier all(static_cast<std::ptrdiff_t>(most));
  std::vector<std::vector<std::byte>> states(static_cast<std::size_t>(phases.back().world));
  std::vector<std::string> errors(most);
  std::vector<std::thread> threads;
  for (std::size_t w = 0; w < most; ++w)
    threads.emplace_back([&, w] {
      const int rank = static_cast<int>(w);
      CpuBackend backend({1 + rank % 2});
      ThreadGroup alone(1);
      Changing strategy;
      strategy.join(alone, 0);
      try {
        Trainer t(backend, strategy, small_net(job.norm), job.options);
        std::size_t done = 0;
        for (std::size_t p = 0; p < phases.size(); ++p) {
          all.arrive_and_wait();
          if (rank < phases[p].world) {
            strategy.join(*groups[p], rank);
            t.reform();
            if (t.counters().step != static_cast<std::int64_t>(done)) fail("test", done, {"step ", t.counters().step});
            run_steps(t, job, done, phases[p].until);
          }
          done = phases[p].until;
        }
        if (w < states.size()) states[w] = logical_state(t);
      } catch (const std::exception& e) {
        errors[w] = e.what();
        all.arrive_and_drop();
      }
    });
  for (auto& t : threads) t.join();
  for (const auto& e : errors) CHECK(e == "");
  return states;
}

}  // namespace

TEST_CASE("members that change between steps do not change the bits, and may be more than the logical ranks") {
  const LogicalJob job = long_job();
  const auto whole = run_phases(job, {{1, 10}});
  for (const std::vector<Members>& phases : {std::vector<Members>{{1, 2}, {2, 3}, {3, 6}, {2, 8}, {1, 10}},
                                             {{3, 4}, {1, 5}, {3, 10}},
                                             {{2, 1}, {5, 7}, {2, 10}},
                                             {{5, 10}}})
    for (const auto& state : run_phases(job, phases)) CHECK(state == whole[0]);
}

TEST_CASE("a step that breaks at any piece, also while it is repeated, leaves the state before it") {
  TrainerOptions o = options_that_break();
  o.logical_ranks = 6;  // two parts for each of three processes
  const auto at = [&](int piece, bool breaks, int whole) {
    std::vector<std::string> said(3);
    int pieces = 0;
    run_ranks(3, [&](ThreadCommunicator& c) {
      CpuBackend backend({1});
      Breaking strategy(c, breaks && c.rank() == 1 ? whole + 1 : 0, piece);
      said[static_cast<std::size_t>(c.rank())] = break_a_step(backend, strategy, 2, breaks, whole, o);
      if (c.rank() == 0) pieces = strategy.pieces();
    });
    for (const std::string& s : said) CHECK(s == "");
    return pieces;
  };
  for (const int whole : {0, 3}) {
    const int pieces = at(0, false, whole);
    CHECK(pieces > 3);
    CHECK(pieces % (whole == 0 ? 2 : 1) == 0);  // the first step of a training is repeated
    for (int piece = -2; piece < pieces; ++piece) {
      CAPTURE(whole);
      CAPTURE(piece);
      at(piece, true, whole);
    }
  }
}

TEST_CASE("a checkpoint continues on another number of processes with the same bits") {
  const LogicalJob job = long_job();
  const LogicalResult whole = train_world(job, 1);
  for (const int first : {1, 2})
    for (const int second : {1, 3}) {
      const test::TempFolder folder;
      const auto part = [&](int world, bool resumes) {
        LogicalResult result;
        run_ranks(world, [&](ThreadCommunicator& c) {
          AllReduce strategy(c);
          CpuBackend backend({1});
          Trainer t(backend, strategy, small_net(true), job.options);
          Checkpoints checkpoints(folder.path());
          if (resumes != checkpoints.resume(t)) fail("test", "a checkpoint", "none");
          run_steps(t, job, resumes ? 4 : 0, resumes ? job.rows.size() : 4);
          t.commit();
          if (c.rank() == 0 && !resumes) checkpoints.save(t);
          const std::vector<std::byte> state = logical_state(t);
          if (c.rank() == 0) result.state = state;
        });
        return result;
      };
      part(first, false);
      CHECK(part(second, true).state == whole.state);
    }
}

TEST_CASE("a checkpoint of other bits is refused by name, unless the options allow it") {
  const test::TempFolder folder;
  Solo solo;
  const LogicalJob job = long_job();
  struct Other : CpuBackend {
    Other() : CpuBackend({1}) {}
    [[nodiscard]] std::vector<BitFact> bits_depend_on() const override { return {{"instruction set", "of a test"}}; }
  } other;
  CpuBackend backend({1});
  std::string saved;
  {
    Trainer t(other, solo, small_net(true), job.options);
    run_steps(t, job, 0, 2);
    t.counters().epoch_loss = 1.0 / 3;
    t.counters().epoch_rows = 26;
    t.commit();
    saved = Checkpoints(folder.path()).save(t);
  }
  const auto resume = [&](Backend& b, int logical_ranks, bool allow) {
    TrainerOptions o = job.options;
    o.logical_ranks = logical_ranks;
    o.allow_other_bits = allow;
    Trainer t(b, solo, small_net(true), o);
    Checkpoints(folder.path()).resume_from(t, saved);
    CHECK(t.counters().step == 2);
    CHECK(t.counters().epoch_loss == 1.0 / 3);
    CHECK(t.counters().epoch_rows == 26);
  };
  resume(other, 3, false);
  CHECK_THROWS_WITH_AS(resume(other, 4, false), doctest::Contains("expected 3 logical ranks, got 4 logical ranks"),
                       UsageError);
  CHECK_THROWS_WITH_AS(resume(other, 0, false), doctest::Contains("expected 3 logical ranks, got no logical ranks"),
                       UsageError);
  CHECK_THROWS_WITH_AS(resume(backend, 3, false), doctest::Contains("--allow-other-bits"), UsageError);
  for (const int ranks : {0, 3, 4}) resume(backend, ranks, true);
  // A checkpoint without logical ranks has no levels; they are found again.
  {
    Trainer t(backend, solo, small_net(true), {});
    t.commit();
    saved = Checkpoints(folder.path()).save(t);
  }
  TrainerOptions o = job.options;
  Trainer t(backend, solo, small_net(true), o);
  CHECK_THROWS_WITH_AS(Checkpoints(folder.path()).resume_from(t, saved),
                       doctest::Contains("expected no logical ranks, got 3 logical ranks"), UsageError);
}
