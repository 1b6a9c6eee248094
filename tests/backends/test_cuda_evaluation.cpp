// SPDX-License-Identifier: MIT
// takes long
// Tests evaluation on an emulated GPU (cuda_emulator.hpp): the host starts all batches without waiting, and waits at
// the end. The results equal, to the bit, the results of a host that waits for each batch.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/detail/evaluation/evaluation_sum.hpp>
#include <tutti/train/detail/evaluation/logits.hpp>
#include <tutti/train/detail/fit/resident_source.hpp>
#include <tutti/train/evaluate_views.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/make_source.hpp>
#include <tutti/train/mistakes.hpp>

#include "backends/emulated_cuda.hpp"
#include "engine/suite.hpp"

using namespace tutti;
using testing::Emulated;

namespace {

constexpr int classes = 3;

MemoryDataset images_of(std::int64_t size, std::int32_t wrong_label_at = -1) {
  Schema s;
  s.name = "test";
  s.channels = 3;
  s.height = s.width = 8;
  s.classes = classes;
  s.mean.assign(3, 120);
  s.stddev.assign(3, 60);
  Rng r(7, Purpose::user);
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(size * s.image_bytes()));
  for (auto& p : pixels) p = static_cast<std::uint8_t>(r.next());
  std::vector<std::int32_t> labels(static_cast<std::size_t>(size));
  for (auto& l : labels) l = static_cast<std::int32_t>(r.below(classes));
  if (wrong_label_at >= 0) {
    // A data set with three classes would refuse such a label.
    s.classes = 1000;
    labels[static_cast<std::size_t>(wrong_label_at)] = 900;
  }
  return {s, pixels, labels};
}

Graph net() {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({120, 120, 120}, {1 / 60.F, 1 / 60.F, 1 / 60.F});
  x = b.max_pool("max", x, {2, 2, 2, 0});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), classes, {Init::he_uniform, 2}), 0.1F, 2);
  return std::move(b).take();
}

enum class How { pageable, pinned, resident };

struct Run {
  Emulated backend;
  Solo solo;
  Trainer trainer;

  explicit Run(bool graph = true, double ema_decay = 0)
      : backend(testing::emulated_options(graph)), trainer(backend, solo, net(), {.ema_decay = ema_decay, .seed = 5}) {}

  std::unique_ptr<BatchSource> source(How how, const AnyDataset& d, std::int64_t batch) {
    const LoaderOptions o{
        .placement = {batch, 0, 1}, .shuffle = false, .one_pass = true, .threads = how == How::pageable ? 0 : 1};
    if (how == How::pageable) return std::make_unique<Loader>(d, o);
    return make_source(backend, d, o, how == How::resident ? OnDevice::yes : OnDevice::no);
  }
  // Returns the result of an evaluation in which the host waits for each batch.
  Metrics waited_for(BatchSource& source) {
    Metrics sum;
    source.start({0, 0});
    for (bool last = false; !last;) {
      const Batch& b = source.next();
      last = b.last_of_epoch;
      sum += trainer.evaluate(view_of(b, 0, b.count));
    }
    source.release();
    return sum;
  }
};

bool same(const EvaluationReport& a, const Metrics& b) {
  return a.loss == b.mean_loss() && a.top1 == b.top1_rate() && a.topk == b.topk_rate() &&
         a.images == static_cast<std::int64_t>(b.rows);
}

// Returns how often the host has waited for all started work.
std::size_t waits() { return emulator::Device::instance().stream_waits; }

// Calls f for a device with an upload stream that works as late as possible, and for one that works as early as
// possible.
template <class F>
void with_both(F&& f) {
  auto& device = emulator::Device::instance();
  for (const bool hasty : {false, true}) {
    CAPTURE(hasty);
    device.hasty = hasty;
    f();
  }
  device.hasty = false;
  device.graph_launches = 0;
}

}  // namespace

TEST_CASE("the host waits once for many batches and gets the same sums as with one wait for each batch") {
  if (testing::no_emulator()) return;
  const AnyDataset d(images_of(93));
  with_both([&] {
    for (const bool graph : {false, true})
      for (const How how : {How::pageable, How::pinned, How::resident}) {
        CAPTURE(graph);
        CAPTURE(static_cast<int>(how));
        Run run(graph);
        const auto source = run.source(how, d, 8);
        const Metrics expected = run.waited_for(*source);
        CHECK(expected.rows == 93);
        for (int pass = 0; pass < 3; ++pass) {
          const std::size_t before = waits();
          const EvaluationReport e = evaluate(run.trainer, *source);
          CHECK(waits() == before + 1);
          CHECK(same(e, expected));
        }
      }
  });
}

TEST_CASE(
    "logits of many batches are copied at once, and the list of mistakes is the same as with one copy for each batch") {
  if (testing::no_emulator()) return;
  const AnyDataset d(images_of(93));
  with_both([&] {
    for (const How how : {How::pageable, How::pinned, How::resident}) {
      CAPTURE(static_cast<int>(how));
      Run run(false);
      const auto source = run.source(how, d, 8);
      const Graph& g = run.trainer.executor().graph();
      const std::int64_t classes = g[g.logits].shape[1];
      MistakeSum expected(classes), seen(classes);
      detail::LogitsOnHost logits(run.trainer.executor());
      source->start({0, 0});
      for (bool last = false; !last;) {
        const Batch& b = source->next();
        last = b.last_of_epoch;
        (void)run.trainer.evaluate(view_of(b, 0, b.count));
        expected.add(logits.of_last_run(b.count), b.labels, b.indices);
      }
      source->release();
      const std::size_t before = waits();
      (void)evaluate(run.trainer, *source, {}, &seen);
      // The host waits for the metrics, for the logits, and when it frees the logits' memory.
      CHECK(waits() == before + 3);
      Solo solo;
      AnyStrategy alone = AnyStrategy::refer(solo);
      const Mistakes a = expected.take(alone), b = seen.take(alone);
      CHECK(a.images == 93);
      CHECK(a.confusion == b.confusion);
      REQUIRE(a.worst.size() == b.worst.size());
      for (std::size_t i = 0; i < a.worst.size(); ++i) {
        CHECK(a.worst[i].index == b.worst[i].index);
        CHECK(a.worst[i].loss == b.worst[i].loss);
      }
    }
  });
}

TEST_CASE("an evaluation may have more batches than the number whose metrics the device can store") {
  if (testing::no_emulator()) return;
  constexpr std::int64_t kept = Executor::kept_metrics;
  for (const std::int64_t size : {kept, 2 * kept + 5}) {
    const AnyDataset d(images_of(size));
    Run run;
    const auto source = run.source(How::resident, d, 1);
    const Metrics expected = run.waited_for(*source);
    const std::size_t before = waits();
    const EvaluationReport e = evaluate(run.trainer, *source);
    CHECK(waits() == before + (size == kept ? 1 : 3));
    CHECK(same(e, expected));
  }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("an evaluation does not disturb the steps before and after it, also with averaged weights") {
  if (testing::no_emulator()) return;
  const AnyDataset d(images_of(40));
  const auto losses_of = [&](bool evaluates) {
    Run run(true, 0.8);
    const auto train = run.source(How::pinned, d, 8), test = run.source(How::resident, d, 16);
    std::vector<double> losses;
    train->start({0, 0});
    for (int i = 0; i < 5; ++i) {
      const Batch& b = train->next();
      const BatchView view = view_of(b, 0, b.count);
      run.trainer.step({&view, 1}, b.count, 0.1);
      if (!evaluates) continue;
      // The steps that the trainer started still run.
      const EvaluationReport e = evaluate(run.trainer, *test);
      CHECK(same(e, run.waited_for(*test)));
      run.trainer.with_ema([&] {
        const EvaluationReport averaged = evaluate(run.trainer, *test);
        CHECK(same(averaged, run.waited_for(*test)));
        CHECK(averaged.loss != e.loss);
      });
      CHECK(same(e, run.waited_for(*test)));
    }
    train->release();
    const Metrics m = run.trainer.take_metrics();
    CHECK(m.rows == 40);
    const auto last = run.source(How::resident, d, 16);
    return std::vector<double>{m.loss, m.top1_hits, evaluate(run.trainer, *last).loss};
  };
  CHECK(losses_of(false) == losses_of(true));
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("a failed evaluation does not affect the next one") {
  if (testing::no_emulator()) return;
  const AnyDataset good(images_of(24)), bad(images_of(24, 13));
  Run run;
  const auto source = run.source(How::resident, good, 4), wrong = run.source(How::resident, bad, 4);
  const Metrics expected = run.waited_for(*source);
  CHECK_THROWS_WITH_AS((void)evaluate(run.trainer, *wrong), doctest::Contains("labels in 0..2, got 900"), DataError);
  CHECK(same(evaluate(run.trainer, *source), expected));
  CHECK_THROWS_WITH_AS((void)evaluate_views(run.trainer, *wrong, test_views(1)),
                       doctest::Contains("labels in 0..2, got 900"), DataError);
  CHECK(same(evaluate(run.trainer, *source), expected));
  // An evaluation that ends in the middle, without a result.
  {
    EvaluationSum given_up(run.trainer.executor());
    source->start({0, 0});
    for (int i = 0; i < 3; ++i) {
      const Batch& b = source->next();
      given_up.add(view_of(b, 0, b.count));
    }
    source->release();
  }
  CHECK(same(evaluate(run.trainer, *source), expected));
  emulator::Device::instance().graph_launches = 0;
}

namespace {

// Returns the result over all views of each image. The host fetches the logits of every view.
Metrics fetched(Run& run, BatchSource& source, const std::vector<TestView>& views) {
  Executor& e = run.trainer.executor();
  const Shape image{1, 3, 8, 8};
  op::SoftmaxCrossEntropy loss;
  for (const Node& n : e.graph().nodes)
    if (const auto* o = std::get_if<op::SoftmaxCrossEntropy>(&n.op)) loss = *o;
  Metrics sum;
  source.start({0, 0});
  for (bool last = false; !last;) {
    const Batch& b = source.next();
    last = b.last_of_epoch;
    std::vector<double> mean(static_cast<std::size_t>(b.count * classes), 0.0);
    for (const TestView& v : views) {
      std::vector<std::uint8_t> pixels(b.images.size());
      make_view(b.images.data(), b.count, image, v, pixels.data());
      run.trainer.evaluate({pixels.data(), b.labels.data(), b.count});
      const TensorRef z = e.value(e.graph().logits);
      std::vector<std::byte> logits(mean.size() * size_of(z.dtype));
      run.backend.copy_out(logits.data(), z.data, logits.size());
      detail::add_values(z.dtype, logits.data(), mean.size(), v.weight, mean.data());
    }
    Metrics m;
    double four[4] = {};
    reference::softmax_cross_entropy<double>(loss, {mean.data(), DType::f64, Shape{b.count, classes}},
                                             {const_cast<std::int32_t*>(b.labels.data()), DType::i32, Shape{b.count}},
                                             four, nullptr, {});
    sum += Metrics{four[0], four[1], four[2], four[3]};
  }
  source.release();
  return sum;
}

}  // namespace

TEST_CASE("views: the logits stay on the device until many can be fetched at once") {
  if (testing::no_emulator()) return;
  const AnyDataset d(images_of(61));
  with_both([&] {
    for (const int level : {0, 1, 2})
      for (const bool graph : {false, true}) {
        CAPTURE(level);
        CAPTURE(graph);
        Run run(graph);
        const auto loader = run.source(How::pageable, d, 8);
        const Metrics expected = fetched(run, *loader, test_views(level));
        CHECK(expected.rows == 61);
        for (const How how : {How::pageable, How::pinned, How::resident}) {
          CAPTURE(static_cast<int>(how));
          const auto source = run.source(how, d, 8);
          const std::size_t before = waits();
          CHECK(same(evaluate_views(run.trainer, *source, test_views(level)), expected));
          // The host waits for the logits, and when it frees the device memory that held them.
          CHECK(waits() == before + 2);
        }
      }
  });
}

TEST_CASE("views: if the device cannot store all logits, the host fetches them in several parts") {
  if (testing::no_emulator()) return;
  const AnyDataset d(images_of(61));
  Run run;
  const auto views = test_views(2);
  const auto loader = run.source(How::pageable, d, 8), source = run.source(How::resident, d, 8);
  const Metrics expected = fetched(run, *loader, views);
  evaluate_views(run.trainer, *source, views);
  // 8 batches; each has the logits of 6 views of 8 images: 3 logits of 4 bytes.
  constexpr std::size_t batch = 6 * 8 * 3 * 4;
  for (const auto& limit : {std::pair{3 * batch - 1, 4}, {2 * batch, 4}, {7 * batch, 2}, {std::size_t{0}, 8}}) {
    const auto bytes = limit.first;
    const int fetches = limit.second;
    CAPTURE(bytes);
    const std::size_t before = waits();
    CHECK(same(evaluate_views(run.trainer, *source, views, bytes), expected));
    CHECK(waits() == before + static_cast<std::size_t>(fetches) + 1);
  }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("the host reads parameters and predictions after the steps that still run on the device") {
  if (testing::no_emulator()) return;
  const MemoryDataset d = images_of(20);
  with_both([&] {
    Run run;
    Loader loader(AnyDataset(d), {.placement = {8, 0, 1}, .seed = 1, .threads = 0});
    const Tensor<float> before = run.trainer.parameter("fc.weight");
    CHECK(before.shape() == Shape{classes, 3});
    for (int step = 0; step < 3; ++step) {
      const BatchView b = view_of(loader.next(), 0, 4);
      run.trainer.step(b, 4, 0.1);
    }
    const Tensor<float> after = run.trainer.parameter("fc.weight");
    CHECK(after != before);
    run.trainer.commit();
    for (const StateSpan& s : run.trainer.committed_tensors(false))
      CHECK(std::ranges::equal(std::as_bytes(run.trainer.parameter(s.name).view()), s.bytes));

    Tensor<std::uint8_t> images(Shape{20, 8, 8, 3});
    for (std::int64_t i = 0; i < 20; ++i) {
      std::int32_t label = 0;
      Rng rng(0, Purpose::user);
      d.read(i, rng, Sample{images.row(i), label});
    }
    const Tensor<float> logits = run.trainer.predict(images);
    CHECK(logits.shape() == Shape{20, classes});
    CHECK(run.trainer.predict(images, 8) == logits);
    // The same net on the CPU.
    CpuBackend cpu({1});
    Trainer there(cpu, run.solo, net(), {.seed = 5});
    auto model = (there.commit(), there.committed_tensors(false));
    for (const StateSpan& s : run.trainer.committed_tensors(false))
      for (StateSpan& t : model)
        if (t.name == s.name) std::copy(s.bytes.begin(), s.bytes.end(), t.bytes.begin());
    there.restore();
    const Tensor<float> expected = there.predict(images);
    for (std::size_t i = 0; i < logits.size(); ++i)
      CHECK(logits.view()[i] == doctest::Approx(expected.view()[i]).epsilon(1e-3));
  });
}
