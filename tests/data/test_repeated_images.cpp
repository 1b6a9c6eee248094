// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include <tutti/data/augment/repeated_images.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/sampler.hpp>

using namespace tutti;

namespace {

// An image is two random bytes; its label is its index.
class Numbered {
 public:
  explicit Numbered(std::int64_t size, std::int64_t block = 1) : size_(size) {
    schema_.name = "numbered";
    schema_.channels = 1;
    schema_.height = 1;
    schema_.width = 2;
    schema_.classes = static_cast<int>(size);
    schema_.block = block;
    schema_.mean = {0};
    schema_.stddev = {1};
  }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] const Schema& schema() const { return schema_; }
  void read(std::int64_t i, Rng& rng, Sample sample) const {
    for (auto& v : sample.image) v = static_cast<std::uint8_t>(rng.next());
    sample.label = static_cast<std::int32_t>(i);
  }

 private:
  std::int64_t size_;
  Schema schema_;
};

struct View {
  std::int64_t index, epoch, step;
  std::int32_t label;
  int pixels;
  auto operator<=>(const View&) const = default;
};

// The views of `epochs` epochs as all ranks read them, sorted by epoch and index.
std::vector<View> read(std::int64_t size, int repeats, int world, int threads, std::int64_t batch, EpochEnd end,
                       int epochs = 2) {
  std::vector<View> views;
  for (int rank = 0; rank < world; ++rank) {
    LoaderOptions o;
    o.placement = {batch, rank, world, end};
    o.threads = threads;
    o.group = 2;
    o.seed = 11;
    Loader loader(RepeatedImages(Numbered(size), repeats, 11), o);
    loader.start({});
    for (Position p; p.epoch < epochs;) {
      const Batch& b = loader.next();
      for (std::size_t i = 0; i < static_cast<std::size_t>(b.count); ++i)
        if (b.epoch_of(i) < epochs)
          views.push_back(
              {b.indices[i], b.epoch_of(i), b.step_in_epoch, b.labels[i], b.images[2 * i] * 256 + b.images[2 * i + 1]});
      p = b.after;
    }
  }
  std::sort(views.begin(), views.end(),
            [](const View& a, const View& b) { return std::pair(a.epoch, a.index) < std::pair(b.epoch, b.index); });
  return views;
}

}  // namespace

TEST_CASE(
    "an epoch shows the first third of its images three times, one view after another, each changed differently") {
  constexpr std::int64_t size = 90;
  const auto views = read(size, 3, 1, 0, 9, EpochEnd::short_step);
  REQUIRE(views.size() == 2 * size);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::int64_t> order(size);
    permutation(11, epoch, order);
    std::set<int> pixels;
    for (std::int64_t i = 0; i < size; ++i) {
      const View& v = views[static_cast<std::size_t>(epoch * size + i)];
      REQUIRE(v.index == i);  // each index once
      REQUIRE(v.label == order[static_cast<std::size_t>(i / 3)]);
      REQUIRE(v.step == i / 9);  // the views of an image are in one step
      pixels.insert(v.pixels);
    }
    CHECK(pixels.size() > size - 3);  // of 65,536 pictures
  }
}

TEST_CASE("repeated views are the same for any number of ranks, threads and images in a step") {
  const auto drop_steps = [](std::vector<View> v) {
    for (View& x : v) x.step = 0;
    return v;
  };
  const auto want = drop_steps(read(50, 4, 1, 0, 8, EpochEnd::short_step));
  CHECK(want == drop_steps(read(50, 4, 1, 3, 8, EpochEnd::short_step)));
  CHECK(want == drop_steps(read(50, 4, 3, 2, 8, EpochEnd::short_step)));
  CHECK(want == drop_steps(read(50, 4, 2, 1, 5, EpochEnd::short_step)));
  CHECK(want == drop_steps(read(50, 4, 2, 1, 7, EpochEnd::run_on)));
}

TEST_CASE("one view of each image is every image once, and the last image of an epoch may have fewer views") {
  std::set<std::int32_t> seen;
  for (const View& v : read(40, 1, 1, 0, 8, EpochEnd::short_step, 1)) seen.insert(v.label);
  CHECK(seen.size() == 40);
  std::map<std::int32_t, int> views;
  for (const View& v : read(40, 3, 1, 0, 8, EpochEnd::short_step, 1)) ++views[v.label];
  CHECK(views.size() == 14);
  CHECK(std::count_if(views.begin(), views.end(), [](const auto& v) { return v.second == 3; }) == 13);
}

TEST_CASE("a loader starts in the middle of an epoch of repeated views, and does not shuffle them") {
  LoaderOptions o;
  o.placement.global_batch = 10;
  o.seed = 11;
  Loader loader(RepeatedImages(Numbered(60), 3, 11), o);
  loader.start({1, 30});
  const auto want = read(60, 3, 1, 0, 10, EpochEnd::short_step);
  const Batch& b = loader.next();
  for (std::size_t i = 0; i < 10; ++i) {
    CHECK(b.indices[i] == static_cast<std::int64_t>(30 + i));
    CHECK(b.labels[i] == want[90 + i].label);
  }
  Sampler sampler = loader.sampler();
  CHECK(sampler.share({0, 0}, o.placement).indices[3] == 3);
}

TEST_CASE("0 and 65 repeats are refused") {
  CHECK_THROWS_WITH_AS(RepeatedImages(Numbered(5), 0, 1),
                       "[repeated augmentation] expected 1 to 64 views of an image, got 0.", UsageError);
  CHECK_THROWS_AS(RepeatedImages(Numbered(5), 65, 1), UsageError);
}
