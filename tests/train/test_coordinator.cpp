// SPDX-License-Identifier: MIT
// Tests that the new rank 0 takes over the duties of the job's coordinator when the members change.
#include <doctest/doctest.h>

#include <array>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/audit.hpp>
#include <tutti/data/check_audit.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/broadcast_text.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/trainer.hpp>

#include "comm/thread_ranks.hpp"

#include "data/temp_folder.hpp"
#include "strategy/broken_step.hpp"
#include "strategy/changing_strategy.hpp"

using namespace tutti;

namespace {

constexpr std::int64_t global_batch = 12, samples = 58;  // five steps per epoch
constexpr std::int64_t change_after = 8;

struct Left {};

struct Saved : FitListener {
  std::string steps, best;
  void saved(const std::string& path) override { steps += path.substr(path.size() - 2) + " "; }
  void epoch(const EpochReport& r) override { best += r.best ? "1" : "0"; }
};

// What one member printed, and which checkpoints it saved.
struct Told {
  std::string printed, saved, best, error;
};

// A job of three members. The coordinator leaves after a step, and the two remaining members continue with a new
// member.
class Job {
 public:
  explicit Job(std::string folder) : folder_(std::move(folder)) {}

  std::array<Told, 4> run() {
    std::vector<std::thread> threads;
    for (std::size_t w = 0; w < 4; ++w)
      threads.emplace_back([this, w] {
        try {
          member(w);
        } catch (const Left&) {
        } catch (const std::exception& e) {
          told_[w].error = e.what();
          all_.arrive_and_drop();
        }
      });
    for (auto& t : threads) t.join();
    return told_;
  }

 private:
  void member(std::size_t w) {
    const bool joins = w == 3;
    CpuBackend backend({1});
    testing::Changing strategy;
    if (joins) {
      all_.arrive_and_wait();
      strategy.join(after_, 2);
    } else {
      strategy.join(before_, static_cast<int>(w));
    }
    Trainer trainer(backend, strategy, testing::net_that_breaks(), testing::options_that_break());
    if (joins) trainer.synchronise();
    SyntheticOptions images{.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true};
    const Placement mine{global_batch, strategy.membership().rank, 3};
    Loader train(Synthetic(images), {.placement = mine, .seed = 9, .threads = 0});
    images.size = 24;
    Loader test(Synthetic(images), {.placement = mine, .shuffle = false, .one_pass = true, .threads = 0});

    Told& told = told_[w];
    ProgressOptions shown;
    shown.write = [&](std::string_view text) { told.printed += text; };
    ProgressDisplay progress(shown);
    Saved saved;
    Checkpoints checkpoints(folder_);
    CoordinatorOptions duties;
    duties.checkpoints = &checkpoints;
    duties.listeners = {&progress, &saved};
    duties.audit = folder_;
    duties.open = [&](bool takes_over) {
      std::vector<std::unique_ptr<FitListener>> all;
      auto log = std::make_unique<RunLog>(folder_, 1, [](const std::string&) {});
      if (!takes_over) log->start(io::Json::object());
      all.push_back(std::move(log));
      return all;
    };
    Coordinator coordinator(trainer, duties);
    FitOptions o{.epochs = 3, .global_batch = global_batch, .report_every = 1};
    // The metric falls with each step, so the first checkpoint stays the best one.
    double metric = 0;
    o.metric = [&](auto, auto labels) { return (metric -= 1) * static_cast<double>(labels.size()); };
    o.after_step = [&](const FitStep& s) {
      metric = static_cast<double>(-s.step);
      if (s.step != change_after || joins) return;
      told.saved = saved.steps;
      all_.arrive_and_wait();
      if (w == 0) throw Left{};
      const int rank = static_cast<int>(w) - 1;
      strategy.join(after_, rank);
      trainer.reform();
      const Placement now{global_batch, rank, 3};
      train.start({trainer.counters().epoch, trainer.counters().consumed}, now);
      test.start({}, now);
    };
    fit(trainer, train, &test, coordinator, o);
    coordinator.tell([&](FitListener& l) { l.ended({"finished", trainer.counters().step}); });
    told.saved = saved.steps;
    told.best = saved.best;
  }

  std::string folder_;
  ThreadGroup before_{3}, after_{3};
  std::barrier<> all_{4};
  std::array<Told, 4> told_;
};

// Returns the events in a log file, each with its step number.
std::string events_of(const std::string& file) {
  std::ifstream in(file);
  std::string line, all;
  while (std::getline(in, line)) {
    const io::Json json = io::parse_json(line);
    all += json.at("event").as_string();
    if (const io::Json* step = json.find("step")) all += std::to_string(step->as_integer());
    all += " ";
  }
  return all;
}

}  // namespace

TEST_CASE("the new rank 0 prints, logs, saves and knows the best result after rank 0 has left") {
  const test::TempFolder folder;
  const auto told = Job(folder.path().string()).run();
  for (const Told& t : told) CHECK(t.error == "");
  CHECK(told[0].saved == "05 ");
  CHECK(told[1].saved == "10 15 ");
  CHECK(told[1].best == "00");
  CHECK(told[2].saved == "");
  CHECK(told[3].saved == "");
  CHECK(told[0].printed.find("step 3/5 (8)") != std::string::npos);
  CHECK(told[0].printed.find("(9)") == std::string::npos);
  CHECK(told[1].printed.find("(8)") == std::string::npos);
  CHECK(told[1].printed.starts_with("after step 8: 3 ranks\n"));
  CHECK(told[1].printed.find("step 4/5 (9)") != std::string::npos);
  CHECK(told[2].printed == "");
  CHECK(told[3].printed == "");
  CHECK(events_of((folder / "log.jsonl").string()) ==
        "start step1 step2 step3 step4 step5 epoch5 step6 step7 step8 members8 step9 step10 epoch10 step11 step12 "
        "step13 step14 step15 epoch15 end15 ");
  CHECK(io::CheckpointStore(folder.path()).best()->step == 5);
  std::vector<std::string> audits;
  for (int rank = 0; rank < 3; ++rank) audits.push_back(audit_file(folder.path(), rank).string());
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) CHECK(check_audit(audits, epoch, samples).exactly_once());
}

TEST_CASE("if a member was lost before the logs were opened, the coordinator or its successor opens them later") {
  for (const int rank : {0, 1}) {
    const test::TempFolder folder;
    ThreadGroup first(1), both(2), again(2), alone(1);
    CpuBackend backend({1});
    testing::Changing strategy;
    strategy.join(first, 0);
    Trainer trainer(backend, strategy, testing::net_that_breaks(), testing::options_that_break());
    strategy.join(both, rank);
    std::string opened;
    Checkpoints checkpoints(folder.path().string());
    CoordinatorOptions duties;
    duties.checkpoints = &checkpoints;
    duties.audit = folder.path().string();
    duties.open = [&](bool takes_over) {
      opened += takes_over ? "takes over " : "begins ";
      return std::vector<std::unique_ptr<FitListener>>{};
    };
    Coordinator of_run(trainer, duties);
    strategy.leave();
    CHECK_THROWS_AS(of_run.on_membership_change(), CommunicationError);
    CHECK(opened == "");
    // The new member is lost again before the logs are open.
    strategy.join(again, 0);
    strategy.leave();
    CHECK_THROWS_AS(of_run.on_membership_change(), CommunicationError);
    strategy.join(alone, 0);
    for (int i = 0; i < 2; ++i) {
      of_run.on_membership_change();
      CHECK(opened == (rank == 0 ? "begins " : "takes over "));
    }
  }
}

TEST_CASE("all ranks get rank 0's text") {
  run_ranks(3, [](ThreadCommunicator& c) {
    AllReduce strategy(c);
    const std::string own = "text of rank " + std::to_string(c.rank());
    if (broadcast_text(strategy, "--run-dir", own) != "text of rank 0") fail("test", "rank 0's text", own);
    if (!broadcast_text(strategy, "--run-dir", c.rank() == 0 ? "" : own).empty()) fail("test", "nothing", own);
  });
  Solo solo;
  CHECK(broadcast_text(solo, "--run-dir", "alone") == "alone");
  CHECK_THROWS_AS(run_ranks(1,
                            [](ThreadCommunicator&) {
                              ThreadGroup group(2);
                              ThreadCommunicator first(group, 0);
                              AllReduce strategy(first);
                              (void)broadcast_text(strategy, "--run-dir", std::string(5000, 'x'));
                            }),
                  UsageError);
}
