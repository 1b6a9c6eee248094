// SPDX-License-Identifier: MIT
// Tests what members of an elastic job hand over: the job itself if all of them leave, and the steps and the sums of
// the reports if the last message of an operation does not reach a member.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/comm/work.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/check_audit.hpp>

#include "data/temp_folder.hpp"
#include "elastic_job.hpp"

using namespace tutti;
using testing::ElasticJob;

namespace {

constexpr auto no_script = [](ElasticJob&, std::size_t, const FitStep&) {};

void require_every_sample_once(const std::string& folder, std::int64_t epochs) {
  std::vector<std::string> files;
  for (const auto& e : std::filesystem::directory_iterator(folder)) files.push_back(e.path().string());
  for (std::int64_t e = 0; e < epochs; ++e) CHECK(check_audit(files, e, ElasticJob::samples).exactly_once());
}

// What rank 0 reports: the loss and accuracy of each step with a report, and of each epoch.
struct Numbers {
  std::map<std::int64_t, std::vector<double>> steps, epochs;
};
Numbers numbers_of(ElasticJob& job) {
  Numbers n;
  for (const StepReport& r : job.step_reports()) n.steps[r.step] = {r.train_loss, r.train_top1};
  for (const EpochReport& r : job.epoch_reports())
    n.epochs[r.epoch] = {r.train_loss, r.train_top1, r.test->loss, r.test->top1};
  return n;
}
void require_same(const std::map<std::int64_t, std::vector<double>>& a,
                  const std::map<std::int64_t, std::vector<double>>& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [at, values] : a) {
    CAPTURE(at);
    REQUIRE(b.contains(at));
    for (std::size_t i = 0; i < values.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(values[i] - b.at(at)[i]) < 1e-9);
    }
  }
}

}  // namespace

TEST_CASE("members that all leave pass the state to a worker that waits, and otherwise save and stop") {
  std::vector<double> of_one;
  {
    ElasticJob alone(1, {}, no_script);
    alone.epochs = 2;
    of_one = alone.run().at(0).weights;
  }
  for (const bool at_epoch : {true, false})
    for (const bool waits : {true, false}) {
      CAPTURE(at_epoch);
      CAPTURE(waits);
      const test::TempFolder folder;
      std::atomic<bool> leave{false};
      control::ArbiterOptions arbiter;
      arbiter.at_epoch = at_epoch;
      ElasticJob job(2, arbiter, [&](ElasticJob& j, std::size_t me, const FitStep& s) {
        if (me != 0 || s.step != 5) return;
        if (waits) j.join();
        if (waits) j.await_request(2);
        leave = true;
      });
      job.leaves = [&](std::size_t me) { return me < 2 && leave; };
      // Both have asked to leave by then.
      job.awaits_change = [](std::size_t me, std::int64_t step) { return me < 2 && step >= 7; };
      job.epochs = 2;
      job.audit = folder.path();
      const auto ended = job.run();
      REQUIRE(ended.size() == (waits ? 3 : 2));
      for (const auto& e : ended) CHECK(e.error == "");
      for (std::size_t i = 0; i < 2; ++i) {
        CHECK(ended[i].left == waits);
        CHECK(ended[i].interrupted == !waits);
        CHECK(ended[i].steps >= 6);
        CHECK(ended[i].steps < 12);  // soon after the request, not at the end of the epoch
      }
      if (!waits) {
        CHECK(ended[0].weights == ended[1].weights);
        CHECK(ended[0].steps == ended[1].steps);
        continue;
      }
      CHECK_FALSE(ended[2].left);
      CHECK(ended[2].steps == 2 * ElasticJob::steps_an_epoch);
      REQUIRE(ended[2].weights.size() == of_one.size());
      for (std::size_t i = 0; i < of_one.size(); ++i) CHECK(std::abs(ended[2].weights[i] - of_one[i]) < 1e-9);
      require_every_sample_once(folder.path(), 2);
    }
}

TEST_CASE("the reports are right if the last message of any sum does not reach one of the members") {
  ElasticJob quiet(2, {}, no_script);
  quiet.epochs = 2;
  std::atomic<int> count{0};
  quiet.after_sum = [&](std::size_t me) { count += me == 0 ? 1 : 0; };
  (void)quiet.run();
  const Numbers right = numbers_of(quiet);
  CHECK(right.epochs.size() == 2);
  CHECK(right.steps.size() == 7);
  REQUIRE(count > 10);
  // The member with the authority, or the other one.
  for (std::size_t lacks = 0; lacks < 2; ++lacks)
    for (int broken = 1; broken <= count; ++broken) {
      CAPTURE(lacks);
      CAPTURE(broken);
      const test::TempFolder folder;
      std::atomic<int> sums{0};
      ElasticJob job(2, {}, no_script);
      job.after_sum = [&](std::size_t me) {
        if (me == lacks && ++sums == broken)
          fail<CommunicationError>("test", "the last message of a sum", "a connection that was reset");
      };
      job.epochs = 2;
      job.audit = folder.path();
      for (const auto& e : job.run()) {
        CHECK(e.error == "");
        CHECK(e.steps == 2 * ElasticJob::steps_an_epoch);
      }
      const Numbers found = numbers_of(job);
      require_same(right.steps, found.steps);
      require_same(right.epochs, found.epochs);
      require_every_sample_once(folder.path(), 2);
    }
}

TEST_CASE("the reports are right if the last message of any piece of a step does not reach one of the members") {
  // The images of all members in each step with a report. Members do the work after such a step together.
  using Rows = std::map<std::int64_t, std::int64_t>;
  std::mutex mutex;
  Rows rows;
  const auto count_rows = [&](ElasticJob&, std::size_t, const FitStep& s) {
    const std::lock_guard lock(mutex);
    if (s.step % 7 == 0 || s.step == ElasticJob::steps_an_epoch) rows[s.step] += s.own_images;
  };
  ElasticJob quiet(2, {}, count_rows);
  quiet.epochs = 1;
  std::atomic<int> count{0};
  quiet.after_piece = [&](std::size_t me) { count += me == 0 ? 1 : 0; };
  (void)quiet.run();
  const Numbers right = numbers_of(quiet);
  const Rows right_rows = std::exchange(rows, {});
  REQUIRE(right_rows.size() == 3);
  const int of_a_step = count / static_cast<int>(ElasticJob::steps_an_epoch);
  REQUIRE(of_a_step > 1);
  // Each piece of a step once, in different steps; the last one in each second step.
  std::vector<int> cases;
  for (int piece = 1; piece < of_a_step; ++piece) cases.push_back((piece % 20) * of_a_step + piece);
  for (int step = 1; step <= ElasticJob::steps_an_epoch; step += 2) cases.push_back(step * of_a_step);
  cases.push_back(count);
  // The member with the reports, or the other one.
  for (std::size_t lacks = 0; lacks < 2; ++lacks)
    for (const int broken : cases) {
      CAPTURE(lacks);
      CAPTURE(broken);
      const test::TempFolder folder;
      std::array<std::atomic<int>, 2> pieces{};
      ElasticJob job(2, {}, count_rows);
      job.after_piece = [&](std::size_t me) {
        if (++pieces[me] != broken || me != lacks) return;
        // The other member has the piece. If it is the last one of the step, that member completes the step.
        poll([&] { return pieces[1 - me] >= broken; }, std::chrono::minutes(2), "the piece of the other member");
        fail<CommunicationError>("test", "the last message of a piece", "a connection that was reset");
      };
      job.epochs = 1;
      job.audit = folder.path();
      for (const auto& e : job.run()) {
        CHECK(e.error == "");
        CHECK(e.steps == ElasticJob::steps_an_epoch);
      }
      const Numbers found = numbers_of(job);
      require_same(right.steps, found.steps);
      require_same(right.epochs, found.epochs);
      CHECK(std::exchange(rows, {}) == right_rows);
      require_every_sample_once(folder.path(), 1);
    }
}

TEST_CASE("the reports of an epoch are right if a member joins in it and the exchange of its sums is broken") {
  const auto script = [](ElasticJob& j, std::size_t me, const FitStep& s) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (me == 0 && s.step == 5) {
      j.join();
      j.await_request(2);
    }
  };
  ElasticJob quiet(2, {}, no_script);
  quiet.epochs = 1;
  (void)quiet.run();
  const Numbers right = numbers_of(quiet);
  // The change of members has two sums, and comes after few steps.
  for (std::size_t lacks = 0; lacks < 2; ++lacks)
    for (int broken = 1; broken <= 8; ++broken) {
      CAPTURE(lacks);
      CAPTURE(broken);
      std::atomic<int> sums{0};
      ElasticJob job(2, {}, script);
      job.after_sum = [&](std::size_t me) {
        if (me == lacks && ++sums == broken)
          fail<CommunicationError>("test", "the last message of a sum", "a connection that was reset");
      };
      job.epochs = 1;
      for (const auto& e : job.run()) CHECK(e.error == "");
      const Numbers found = numbers_of(job);
      require_same(right.epochs, found.epochs);
    }
}
