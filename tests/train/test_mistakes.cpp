// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/data/images/image_header.hpp>
#include <tutti/data/images/png_write.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/io/base64.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/evaluation_file.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/mistakes.hpp>

#include "comm/thread_ranks.hpp"
#include "data/temp_folder.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

Mistakes of_one(MistakeSum& sum) {
  Solo solo;
  AnyStrategy alone = AnyStrategy::refer(solo);
  return sum.take(alone);
}

// Adds rows of three logits each to the sum. The logits, labels and indices depend only on the row number.
void add_rows(MistakeSum& sum, std::int64_t begin, std::int64_t end) {
  std::vector<float> logits;
  std::vector<std::int32_t> labels;
  std::vector<std::int64_t> indices;
  for (std::int64_t i = begin; i < end; ++i) {
    Rng rng(5, Purpose::user, 0, static_cast<std::uint64_t>(i));
    for (int c = 0; c < 3; ++c) logits.push_back(static_cast<float>(rng.below(1000)) / 100.F);
    labels.push_back(static_cast<std::int32_t>(i % 3));
    indices.push_back(i);
  }
  sum.add(logits, labels, indices);
}

void check_equal(const Mistakes& a, const Mistakes& b) {
  CHECK(a.images == b.images);
  CHECK(a.confusion == b.confusion);
  REQUIRE(a.worst.size() == b.worst.size());
  for (std::size_t i = 0; i < a.worst.size(); ++i) {
    CHECK(a.worst[i].index == b.worst[i].index);
    CHECK(a.worst[i].label == b.worst[i].label);
    CHECK(a.worst[i].said == b.worst[i].said);
    CHECK(a.worst[i].loss == b.worst[i].loss);
    CHECK(a.worst[i].sure == b.worst[i].sure);
  }
}

// A listener that keeps the reports of fit().
struct Hears : FitListener {
  std::vector<Mistakes> all;
  std::vector<EpochReport> epochs;
  void mistakes(const Mistakes& m) override { all.push_back(m); }
  void epoch(const EpochReport& r) override { epochs.push_back(r); }
};

Graph net() {
  Builder b(3, 4, 4);
  const ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 1}), 0.1F, 2);
  return std::move(b).take();
}

}  // namespace

TEST_CASE("mistakes are counted by label and answer, and the worst images are listed") {
  MistakeSum sum(3);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits{2, 0, 0, /**/ 0, 3, 0, /**/ 0, 0, 1, /**/ 9, 9, 9, /**/ nan, 0, 0, /**/ 1, 1, 0};
  sum.add(logits, std::vector<std::int32_t>{0, 0, 1, -1, 2, 1}, std::vector<std::int64_t>{10, 11, 12, 13, 14, 15});
  const Mistakes m = of_one(sum);
  // The unreadable image (label -1) does not count, and neither does the image without a class as the answer (logit
  // NaN). If two logits are equal, the first class is the answer.
  CHECK(m.images == 4);
  CHECK(m.classes == 3);
  CHECK(m.confusion == std::vector<double>{1, 1, 0, 1, 0, 1, 0, 0, 0});
  REQUIRE(m.worst.size() == 3);
  CHECK(m.worst[0].index == 11);
  CHECK(m.worst[0].label == 0);
  CHECK(m.worst[0].said == 1);
  CHECK(m.worst[0].loss == doctest::Approx(std::log(std::exp(3.0) + 2)));
  CHECK(m.worst[0].sure == doctest::Approx(std::exp(3.0) / (std::exp(3.0) + 2)));
  CHECK(m.worst[1].index == 12);
  CHECK(m.worst[2].index == 15);
  // take() also empties the sum.
  CHECK(of_one(sum).images == 0);
}

TEST_CASE("several ranks report the same mistakes as one rank") {
  MistakeSum all(3);
  add_rows(all, 0, 200);
  const Mistakes expected = of_one(all);
  CHECK(expected.images == 200);
  CHECK(expected.worst.size() == MistakeSum::most_worst);
  for (std::size_t i = 1; i < expected.worst.size(); ++i) CHECK(expected.worst[i - 1].loss >= expected.worst[i].loss);
  std::mutex mutex;
  for (const int size : {2, 3}) {
    run_ranks(size, [&](ThreadCommunicator& c) {
      AllReduce reduces(c);
      AnyStrategy strategy = AnyStrategy::refer(reduces);
      MistakeSum mine(3);
      const std::int64_t rank = c.rank();
      add_rows(mine, 200 * rank / size, 200 * (rank + 1) / size);
      const Mistakes m = mine.take(strategy);
      const std::lock_guard lock(mutex);
      check_equal(m, expected);
    });
  }
}

TEST_CASE("with many classes there is no confusion matrix, but the images are listed") {
  const auto classes = MistakeSum::most_classes + 1;
  MistakeSum sum(classes);
  std::vector<float> logits(static_cast<std::size_t>(classes));
  logits[7] = 2;
  sum.add(logits, std::vector<std::int32_t>{1000}, std::vector<std::int64_t>{3});
  const Mistakes m = of_one(sum);
  CHECK(m.confusion.empty());
  CHECK(m.images == 1);
  REQUIRE(m.worst.size() == 1);
  CHECK(m.worst[0].said == 7);
}

TEST_CASE("each evaluation of a training reports its mistakes, and the file has those of the last evaluation") {
  const TempFolder folder;
  CpuBackend backend;
  const Synthetic images({.size = 40, .height = 4, .width = 4, .classes = 4, .seed = 2, .learnable = true});
  for (const double ema : {0.0, 0.9}) {
    CAPTURE(ema);
    Solo solo;
    Trainer t(backend, solo, net(), {.ema_decay = ema, .seed = 3});
    Loader train(images, {.placement = {.global_batch = 8}}),
        test(images, {.placement = {.global_batch = 7}, .shuffle = false, .one_pass = true});
    Hears hears;
    EvaluationFile file(folder.path(), images, [](const std::string& c) { FAIL_CHECK(c); });
    Coordinator coordinator(t, {.listeners = {&hears, &file}});
    FitOptions how{.epochs = 2, .global_batch = 8, .schedule = schedule::Constant{0.01}};
    how.mistakes = true;
    fit(t, train, &test, coordinator, how);
    REQUIRE(hears.all.size() == 2);
    const Mistakes& m = hears.all[1];
    CHECK(m.epoch == 2);
    CHECK(m.step == 10);
    CHECK(m.averaged == (ema > 0));
    CHECK(m.images == 40);
    double right = 0, of_all = 0;
    for (std::size_t i = 0; i < 16; ++i) {
      of_all += m.confusion[i];
      if (i % 5 == 0) right += m.confusion[i];
    }
    CHECK(of_all == 40);
    const EpochReport& last = hears.epochs[1];
    CHECK(right / 40 == doctest::Approx((ema > 0 ? last.test_ema : last.test)->top1));
    REQUIRE(!m.worst.empty());

    const io::Json json = io::parse_json(io::read_text_file(folder / "evaluation.json", 1 << 20));
    CHECK(json.at("epoch") == io::Json(2));
    CHECK(json.at("averaged").as_bool() == (ema > 0));
    double sum = 0;
    const auto& triples = json.at("confusion").as_array();
    for (std::size_t i = 0; i < triples.size(); i += 3) {
      const auto at = static_cast<std::size_t>(triples[i].as_integer() * 4 + triples[i + 1].as_integer());
      CHECK(triples[i + 2].as_double() == m.confusion[at]);
      sum += triples[i + 2].as_double();
    }
    CHECK(sum == 40);
    CHECK(json.at("worst").as_array().size() == m.worst.size());
    const io::Json& first = json.at("worst").as_array()[0];
    CHECK(first.at("index").as_integer() == m.worst[0].index);
    const auto png = io::from_base64(first.at("png").as_string());
    REQUIRE(png);
    std::vector<std::uint8_t> pixels(48);
    std::int32_t label = 0;
    Rng rng(0, Purpose::user);
    images.read(m.worst[0].index, rng, {pixels, label});
    CHECK(label == m.worst[0].label);
    CHECK(*png == write_png(pixels, 4, 4, 3));
  }
  // If there is no listener, fit() makes no report.
  Solo solo;
  Trainer t(backend, solo, net(), {.seed = 3});
  Loader train(images, {.placement = {.global_batch = 8}}),
      test(images, {.placement = {.global_batch = 7}, .shuffle = false, .one_pass = true});
  Hears hears;
  Coordinator coordinator(t, {.listeners = {&hears}});
  fit(t, train, &test, coordinator, {.epochs = 1, .global_batch = 8});
  CHECK(hears.all.empty());
  CHECK(hears.epochs.size() == 1);
}

TEST_CASE("with keep_best() the file has the mistakes of the best evaluation, also after a resume") {
  const TempFolder folder;
  const Synthetic images({.size = 4, .height = 4, .width = 4, .classes = 4});
  const auto file = [&] { return EvaluationFile(folder.path(), images, [](const std::string& c) { FAIL_CHECK(c); }); };
  // Reports an evaluation, and returns the step in the file.
  const auto step_after = [&](EvaluationFile& f, std::int64_t step, bool best) {
    Mistakes m;
    m.step = step;
    m.classes = m.images = 4;
    f.mistakes(m);
    EpochReport r;
    r.step = step;
    r.best = best;
    f.epoch(r);
    return io::parse_json(io::read_text_file(folder / "evaluation.json", 1 << 20)).at("step").as_integer();
  };
  EvaluationFile first = file();
  first.keep_best({});
  CHECK(step_after(first, 1, false) == 1);
  CHECK(step_after(first, 2, true) == 2);
  CHECK(step_after(first, 3, false) == 2);
  EvaluationFile resumed = file(), of_another = file();
  resumed.keep_best(2);
  CHECK(step_after(resumed, 4, false) == 2);
  CHECK(step_after(resumed, 5, true) == 5);
  of_another.keep_best(2);
  CHECK(step_after(of_another, 6, false) == 6);
}

TEST_CASE("a mistakes file that cannot be written is reported once") {
  const TempFolder folder;
  std::vector<std::string> complaints;
  EvaluationFile file(folder / "none", Synthetic({.size = 4, .height = 4, .width = 4, .classes = 4, .seed = 2}),
                      [&](const std::string& c) { complaints.push_back(c); });
  file.mistakes({});
  file.mistakes({});
  REQUIRE(complaints.size() == 1);
  CHECK(contains(complaints[0], "evaluation.json cannot be written"));
}

TEST_CASE("a PNG file is read back, and its extents are checked") {
  std::vector<std::uint8_t> image(300 * 100 * 3);  // exceeds a block of 65,535 bytes
  for (std::size_t i = 0; i < image.size(); ++i) image[i] = static_cast<std::uint8_t>(i * 7);
  const std::string png = write_png(image, 100, 300, 3);
  const ImageHeader h = read_image_header({reinterpret_cast<const std::uint8_t*>(png.data()), png.size()}, "png");
  CHECK(h.height == 100);
  CHECK(h.width == 300);
  CHECK_THROWS_AS((void)write_png(image, 100, 299, 3), UsageError);
  CHECK_THROWS_AS((void)write_png(image, 100, 450, 2), UsageError);
  CHECK_THROWS_AS((void)write_png({}, 0, 0, 1), UsageError);
}

TEST_CASE("a thumbnail has mean values, and a small image stays unchanged") {
  const std::vector<std::uint8_t> image{0, 2, 10, 20, /**/ 4, 6, 30, 41};
  const Thumbnail half = make_thumbnail(image, 2, 4, 1, 2);
  CHECK(half.height == 1);
  CHECK(half.width == 2);
  CHECK(half.pixels == std::vector<std::uint8_t>{3, 25});
  CHECK(make_thumbnail(image, 2, 4, 1, 4).pixels == image);
  const Thumbnail line = make_thumbnail(std::vector<std::uint8_t>(100, 9), 1, 100, 1, 3);
  CHECK(line.height == 1);
  CHECK(line.pixels == std::vector<std::uint8_t>{9, 9, 9});
  // Of an image with two channels the thumbnail contains the first one; of an image with four channels, the first
  // three.
  CHECK(make_thumbnail(image, 2, 2, 2, 8).pixels == std::vector<std::uint8_t>{0, 10, 4, 30});
  CHECK(make_thumbnail(image, 1, 2, 4, 8).pixels == std::vector<std::uint8_t>{0, 2, 10, 4, 6, 30});
}

TEST_CASE("Base64 follows RFC 4648") {
  const std::pair<const char*, const char*> pairs[] = {
      {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}};
  for (const auto& [bytes, text] : pairs) {
    CHECK(io::to_base64(bytes) == text);
    CHECK(io::from_base64(text) == std::optional<std::string>(bytes));
  }
  for (const char* bad : {"Z", "Zg=", "Zg=a", "Zg==Zg==", "Zm9\"", "===="}) CHECK(!io::from_base64(bad));
}
