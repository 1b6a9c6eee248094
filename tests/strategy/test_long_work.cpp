// SPDX-License-Identifier: MIT
// takes long
// Tests work of single ranks that takes longer than the deadline of a reduction: the other ranks wait, but not for
// ever.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/train/evaluate_views.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/run_with_heartbeat.hpp>

#include "comm/thread_ranks.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using Strategy = AllReduce<ThreadCommunicator>;

namespace {

constexpr std::int64_t side = 4, classes = 4;

Graph net() {
  Builder b(3, side, side);
  const ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), classes, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

Synthetic images() {
  return Synthetic({.size = 64, .height = side, .width = side, .classes = classes, .seed = 1, .learnable = true});
}

// A source that takes a fixed time for each batch.
class SlowSource final : public BatchSource {
 public:
  SlowSource(BatchSource& of, std::chrono::milliseconds time) : of_(of), time_(time) {}
  void start(Position p) override { of_.start(p); }
  void start(Position p, const Placement& placement) override { of_.start(p, placement); }
  [[nodiscard]] const Placement& placement() const override { return of_.placement(); }
  [[nodiscard]] Sampler sampler() const override { return of_.sampler(); }
  const Batch& next() override {
    std::this_thread::sleep_for(time_);
    return of_.next();
  }
  void release() override { of_.release(); }
  [[nodiscard]] std::int64_t skipped() const override { return of_.skipped(); }
  [[nodiscard]] std::vector<std::string> take_skip_messages() override { return of_.take_skip_messages(); }
  [[nodiscard]] double seconds_waited() const override { return of_.seconds_waited(); }
  [[nodiscard]] std::int64_t size() const override { return of_.size(); }

 private:
  BatchSource& of_;
  std::chrono::milliseconds time_;
};

}  // namespace

TEST_CASE("ranks wait for long work of other ranks beyond the deadline of a reduction") {
  const std::vector<std::vector<int>> workers{{0}, {2}, {1, 2}, {0, 1, 2}, {}};
  std::atomic<int> passed{0}, worked{0}, caught{0};
  for (const auto& who : workers)
    for (const bool fails : {false, true})
      run_ranks(
          3,
          [&](ThreadCommunicator& c) {
            Strategy s(c);
            std::function<void()> work;
            for (const int r : who)
              if (r == c.rank())
                work = [&, r] {
                  // The work of a rank with a higher number takes longer.
                  std::this_thread::sleep_for(1s + r * 150ms);
                  ++worked;
                  if (fails) fail<DataError>("disk", "room", "none");
                };
            try {
              run_with_heartbeat(s, "work", work);
            } catch (const DataError&) {
              ++caught;
            }
            double one = 1;
            s.sum({&one, 1});
            passed += one == 3;
          },
          400ms);
  CHECK(passed == 5 * 2 * 3);
  CHECK(worked == 2 * (1 + 1 + 2 + 3));
  CHECK(caught == 1 + 1 + 2 + 3);
}

TEST_CASE("the wait for other ranks is limited, and the error names the ranks that did not arrive") {
  std::atomic<int> told{0};
  run_ranks(
      3,
      [&](ThreadCommunicator& c) {
        Strategy s(c);
        const auto work = [] { std::this_thread::sleep_for(4500ms); };
        try {
          run_with_heartbeat(s, "saving a checkpoint", c.rank() > 0 ? std::function<void()>(work) : nullptr);
        } catch (const CommunicationError& e) {
          const std::string text = e.what();
          CAPTURE(text);
          CHECK(text.find("[rank 1, rank 2]") != std::string::npos);
          told += text.find("saving a checkpoint within 10 times the deadline") != std::string::npos;
        }
      },
      400ms);
  CHECK(told == 3);
}

TEST_CASE("an evaluation on one rank may take longer than a reduction's deadline, but a batch may not") {
  for (const bool views : {false, true})
    for (const auto time : {150ms, 1500ms}) {
      CAPTURE(views);
      CAPTURE(time.count());
      std::atomic<int> evaluated{0}, lost{0};
      run_ranks(
          2,
          [&](ThreadCommunicator& c) {
            Strategy s(c);
            ReferenceBackend backend;
            Trainer trainer(backend, s, net(), {});
            const auto data = images();
            Loader loader(data, {.placement = {8, c.rank(), 2}, .shuffle = false, .one_pass = true, .threads = 1});
            SlowSource source(loader, c.rank() == 1 ? time : 0ms);
            try {
              const EvaluationReport r =
                  views ? evaluate_views(trainer, source, test_views(1)) : evaluate(trainer, source);
              evaluated += r.images == 64;
            } catch (const CommunicationError&) {
              ++lost;
            }
          },
          500ms);
      CHECK(evaluated == (time < 500ms ? 2 : 0));
      CHECK(lost == (time < 500ms ? 0 : 2));
    }
}
