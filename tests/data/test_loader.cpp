// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <tutti/data/augment.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/memory_dataset.hpp>

#include "core/startable.hpp"
#include "temp_folder.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

// Counts what is allocated while it is switched on, by any thread.
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

Schema tiny() {
  Schema s;
  s.name = "tiny";
  s.channels = 3;
  s.height = s.width = 5;
  s.classes = 1000;
  s.mean = {0, 0, 0};
  s.stddev = {1, 1, 1};
  return s;
}

MemoryDataset numbered(std::size_t n) {
  std::vector<std::uint8_t> pixels(n * 75);
  Rng rng(0, Purpose::user);
  for (auto& p : pixels) p = static_cast<std::uint8_t>(rng.next());
  std::vector<std::int32_t> labels(n);
  std::iota(labels.begin(), labels.end(), 0);
  return {tiny(), std::move(pixels), std::move(labels)};
}

struct Copy {
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
  std::vector<std::int64_t> indices;
  std::int64_t global_count, epoch, step;
  bool last;
  Position after;
  bool operator==(const Copy&) const = default;
};

Copy copy_of(const Batch& b) {
  REQUIRE(b.count == static_cast<std::int64_t>(b.labels.size()));
  REQUIRE(b.indices.size() == b.labels.size());
  REQUIRE(b.images.size() == b.labels.size() * 75);
  REQUIRE(reinterpret_cast<std::uintptr_t>(b.images.data()) % 64 == 0);
  return {{b.images.begin(), b.images.end()},
          {b.labels.begin(), b.labels.end()},
          {b.indices.begin(), b.indices.end()},
          b.global_count,
          b.epoch,
          b.step_in_epoch,
          b.last_of_epoch,
          b.after};
}

LoaderOptions options_of(std::int64_t g, int rank, int world, int threads) {
  LoaderOptions o;
  o.placement = {g, rank, world};
  o.threads = threads;
  o.seed = 42;
  o.group = 3;
  return o;
}

std::vector<Copy> take(Loader& loader, int n) {
  std::vector<Copy> all;
  for (int i = 0; i < n; ++i) all.push_back(copy_of(loader.next()));
  return all;
}

// A data set whose read() can be slow or fail.
struct Troubled {
  Schema s = tiny();
  std::int64_t bad = -1;
  std::set<std::int64_t> several{};  // DataErrors
  int kind = 0;
  int milliseconds = 0;
  std::shared_ptr<std::atomic<int>> reads = std::make_shared<std::atomic<int>>(0);

  [[nodiscard]] std::int64_t size() const { return 100; }
  [[nodiscard]] const Schema& schema() const { return s; }
  void read(std::int64_t i, Rng&, Slot slot) const {
    ++*reads;
    if (milliseconds > 0) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    if ((i == bad && kind == 0) || several.contains(i)) fail<DataError>("record", "a JPEG", "garbage");
    if (i == bad && kind == 1) throw std::runtime_error("boom");
    if (i == bad && kind == 2) throw 7;
    if (i == bad && kind == 3) fail<CommunicationError>("remote store", "an answer", "none");
    slot.label = static_cast<std::int32_t>(i);
    std::ranges::fill(slot.image, static_cast<std::uint8_t>(i));
  }
};

}  // namespace

// Counts, then does what the original does. Inlined, GCC would take new and free for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t n) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  void* p = std::malloc(n != 0 ? n : 1);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

TEST_CASE("batches do not depend on threads, slots or groups") {
  const Augmented data(numbered(103), Augment::cifar());
  Loader plain(data, options_of(16, 0, 1, 0));
  const auto expected = take(plain, 20);
  CHECK(expected[0].step == 0);
  CHECK(expected[6].last);
  CHECK(expected[6].labels.size() == 103 - 6 * 16);
  CHECK(expected[6].global_count == 7);
  CHECK(expected[6].after == Position{1, 0});
  CHECK(expected[7].epoch == 1);
  CHECK(expected[7].step == 0);
  CHECK(expected[0].indices != expected[7].indices);
  for (const int threads : {1, 2, 5})
    for (const int slots : {1, 2, 4})
      for (const std::int64_t group : {1, 3, 100}) {
        LoaderOptions o = options_of(16, 0, 1, threads);
        o.slots = slots;
        o.group = group;
        Loader loader(data, o);
        CHECK(take(loader, 20) == expected);
      }
}

TEST_CASE("a sample's random numbers come from seed, epoch and index") {
  const Augmented data(numbered(20), Augment::cifar());
  Loader loader(data, options_of(20, 0, 1, 2));
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    const Batch& b = loader.next();
    for (std::size_t i = 0; i < 20; ++i) {
      Rng rng(42, Purpose::augment, epoch, static_cast<std::uint64_t>(b.indices[i]));
      std::vector<std::uint8_t> image(75);
      std::int32_t label = -1;
      data.read(b.indices[i], rng, Slot{image, label});
      CHECK(std::ranges::equal(image, b.images.subspan(75 * i, 75)));
      CHECK(label == b.labels[i]);
    }
  }
}

TEST_CASE("the samples of all ranks together are those of one rank, augmentation included") {
  const Augmented data(numbered(50), Augment::cifar());
  Loader one(data, options_of(12, 0, 1, 1));
  const auto expected = take(one, 10);
  for (const int world : {2, 3, 5}) {
    std::vector<std::unique_ptr<Loader>> ranks;
    for (int r = 0; r < world; ++r) ranks.push_back(std::make_unique<Loader>(data, options_of(12, r, world, 1)));
    for (const auto& whole : expected) {
      Copy sum = copy_of(ranks[0]->next());
      for (int r = 1; r < world; ++r) {
        const Copy part = copy_of(ranks[static_cast<std::size_t>(r)]->next());
        sum.images.insert(sum.images.end(), part.images.begin(), part.images.end());
        sum.labels.insert(sum.labels.end(), part.labels.begin(), part.labels.end());
        sum.indices.insert(sum.indices.end(), part.indices.begin(), part.indices.end());
      }
      CHECK(sum == whole);
    }
  }
}

TEST_CASE("a loader starts anywhere, again, and with another placement") {
  const Augmented data(numbered(103), Augment::cifar());
  Loader all(data, options_of(16, 0, 1, 0));
  const auto expected = take(all, 20);
  for (const int threads : {0, 2}) {
    Loader loader(data, options_of(16, 0, 1, threads));
    loader.start(expected[8].after);
    const auto rest = take(loader, 11);
    CHECK(std::equal(rest.begin(), rest.end(), expected.begin() + 9));
    loader.start({});  // with batches in flight
    CHECK(take(loader, 20) == expected);
    // Rank 1 of 2 with twice the batch, from the middle.
    loader.start({0, 32}, {32, 1, 2});
    CHECK(copy_of(loader.next()).images == expected[3].images);
    const Batch& b = loader.next();
    CHECK(b.global_count == 32);
    CHECK(b.step_in_epoch == 2);
    CHECK(b.after == Position{0, 96});
    CHECK_THROWS_AS(loader.start({0, 103}), UsageError);
    CHECK_THROWS_AS(loader.start({0, 0}, {16, 2, 2}), UsageError);
  }
}

TEST_CASE("a rank without rows gets empty batches") {
  for (const int threads : {0, 2}) {
    Loader loader(numbered(10), options_of(8, 3, 4, threads));
    CHECK(loader.next().count == 2);
    const Batch& b = loader.next();
    CHECK(b.count == 0);
    CHECK(b.images.empty());
    CHECK(b.global_count == 2);
    CHECK(b.last_of_epoch);
    CHECK(loader.next().count == 2);
  }
}

TEST_CASE("one pass, in order, for evaluation") {
  for (const int threads : {0, 2}) {
    LoaderOptions o = options_of(16, 0, 1, threads);
    o.shuffle = false;
    o.one_pass = true;
    Loader loader(numbered(50), o);
    for (int pass = 0; pass < 3; ++pass) {
      loader.start({});
      std::int64_t i = 0;
      bool last = false;
      while (!last) {
        const Batch& b = loader.next();
        for (const auto l : b.labels) CHECK(l == i++);
        last = b.last_of_epoch;
      }
      CHECK(i == 50);
      CHECK_THROWS_AS((void)loader.next(), UsageError);
    }
    CHECK(loader.steps_per_epoch() == 4);
  }
}

TEST_CASE("a batch larger than the data set is the data set") {
  Loader loader(numbered(5), options_of(1'000'000'000, 0, 1, 1));
  CHECK(loader.next().count == 5);
  CHECK(loader.next().epoch == 1);
}

TEST_CASE("what read() throws comes out of next() with data set and index") {
  for (const int threads : {0, 3})
    for (int kind = 0; kind < 4; ++kind) {
      Troubled data;
      data.bad = 37;
      data.kind = kind;
      LoaderOptions o = options_of(10, 0, 1, threads);
      o.shuffle = false;
      Loader loader(data, o);
      for (int i = 0; i < 3; ++i) CHECK(loader.next().labels[0] == 10 * i);
      const auto message = message_of<Error>([&] { (void)loader.next(); });
      CHECK(contains(message, "sample 37 of tiny"));
      CHECK(contains(message, kind == 0 ? "garbage" : kind == 1 ? "boom" : kind == 2 ? "exception" : "remote store"));
      if (kind == 0) CHECK_THROWS_AS((void)loader.next(), DataError);
      if (kind == 3) {
        int code = 0;
        try {
          (void)loader.next();
        } catch (const Error& e) {
          code = e.exit_code();
        }
        CHECK(code == 5);
      }
      loader.start({0, 50});
      CHECK(loader.next().labels[0] == 50);
    }
}

TEST_CASE("samples that cannot be read are skipped on request and keep their place") {
  Troubled data;
  data.several = {3, 4, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 29, 55};
  const auto options = [&](int threads) {
    LoaderOptions o = options_of(10, 0, 1, threads);
    o.shuffle = false;
    o.skip_bad_records = true;
    return o;
  };
  Loader plain(data, options(0));
  std::vector<Copy> expected;
  std::vector<std::int64_t> skipped;
  for (int i = 0; i < 10; ++i) {
    const Batch& b = plain.next();
    expected.push_back(copy_of(b));
    skipped.push_back(b.skipped);
    CHECK(b.count == 10);
    CHECK(b.global_count == 10);
  }
  CHECK(skipped == std::vector<std::int64_t>{3, 10, 1, 0, 0, 1, 0, 0, 0, 0});
  CHECK(plain.skipped() == 15);
  const auto image = [&](std::size_t batch, std::size_t row) { return int{expected[batch].images[75 * row + 74]}; };
  CHECK(expected[0].labels == std::vector<std::int32_t>{0, 1, 2, -1, -1, 5, 6, 7, 8, -1});
  CHECK(image(0, 3) == 5);
  CHECK(image(0, 4) == 5);
  CHECK(image(0, 9) == 0);
  CHECK(expected[1].labels == std::vector<std::int32_t>(10, skipped_label));
  CHECK(std::ranges::count(expected[1].images, 0) == 750);
  CHECK(image(2, 9) == 20);
  CHECK(expected[5].labels[5] == skipped_label);
  CHECK(image(5, 5) == 56);
  const auto messages = plain.take_skip_messages();
  REQUIRE(messages.size() == 3 + 8 + 1 + 1);  // no more than 8 of a batch
  CHECK(contains(messages[0], "sample 3 of tiny"));
  CHECK(contains(messages[0], "garbage"));
  CHECK(contains(messages[3], "sample 10 "));
  CHECK(contains(messages.back(), "sample 55 "));
  CHECK(plain.take_skip_messages().empty());
  for (const int threads : {1, 3}) {
    Loader loader(data, options(threads));
    CHECK(take(loader, 10) == expected);
    CHECK(loader.skipped() == 15);
    CHECK(loader.take_skip_messages() == messages);
    for (int i = 0; i < 100; ++i) (void)loader.next();  // and over again
    CHECK(loader.skipped() == 15 * 11);
    CHECK(loader.take_skip_messages().size() == 64);
  }
  // What is no DataError is an error as ever, also after a bad record.
  data.bad = 5;
  for (const int kind : {1, 2, 3})
    for (const int threads : {0, 2}) {
      data.kind = kind;
      Loader loader(data, options(threads));
      CHECK(contains(message_of<Error>([&] { (void)loader.next(); }), "sample 5 of tiny"));
    }
}

TEST_CASE("a data set's blocks decide the order") {
  Schema s = tiny();
  s.block = 4;
  const MemoryDataset data(s, std::vector<std::uint8_t>(1000 * 75), std::vector<std::int32_t>(1000));
  Loader loader(data, options_of(1000, 0, 1, 0));
  std::vector<std::int64_t> order(1000);
  permutation(42, 0, order, 4);
  CHECK(std::ranges::equal(loader.next().indices, order));
}

TEST_CASE("a loader can be stopped at any time") {
  for (int i = 0; i < 20; ++i) {
    Troubled data;
    data.milliseconds = 1;
    Loader loader(data, options_of(64, 0, 1, 1 + i % 4));
    if (i % 2 != 0) loader.start({0, i});
    if (i % 4 == 3) CHECK(loader.next().count > 0);
  }
  // Without ever being started.
  const Loader idle(numbered(5), options_of(2, 0, 1, 3));
}

TEST_CASE("the ring reads ahead no further than its slots") {
  Troubled data;
  LoaderOptions o = options_of(10, 0, 1, 2);
  o.slots = 3;
  Loader loader(data, o);
  (void)loader.next();
  for (int i = 0; i < 200 && data.reads->load() < 30; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(data.reads->load() == 30);  // one held, two ahead
  loader.release();
  for (int i = 0; i < 200 && data.reads->load() < 40; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(data.reads->load() == 40);
}

TEST_CASE("the wait for data is told") {
  Troubled data;
  data.milliseconds = 2;
  Loader loader(data, options_of(10, 0, 1, 1));
  CHECK(loader.seconds_waited() == 0);
  (void)loader.next();
  CHECK(loader.seconds_waited() >= 0.015);
}

TEST_CASE("nothing is allocated in the steady state") {
  const Augmented data(numbered(103), Augment::cifar());
  for (const int threads : {0, 2}) {
    Loader loader(data, options_of(16, 0, 1, threads));
    (void)loader.next();
    allocations = 0;
    counting = true;
    for (int i = 0; i < 30; ++i) (void)loader.next();  // four epochs
    counting = false;
    CHECK(allocations == 0);
  }
}

TEST_CASE("a program can bring its own memory") {
  int calls = 0;
  LoaderOptions o = options_of(16, 0, 2, 1);
  o.slots = 2;
  o.allocate = [&](std::size_t bytes) {
    ++calls;
    CHECK(bytes == 8 * 75);
    return std::shared_ptr<void>(std::aligned_alloc(64, 640), [](void* p) { std::free(p); });
  };
  Loader loader(numbered(40), o);
  CHECK(loader.next().count == 8);
  CHECK(calls == 2);
}

TEST_CASE("options that make no sense are refused") {
  const auto build = [](auto change) {
    LoaderOptions o;
    change(o);
    const Loader loader(numbered(5), o);
  };
  CHECK_THROWS_AS(build([](LoaderOptions& o) { o.threads = -1; }), UsageError);
  CHECK_THROWS_AS(build([](LoaderOptions& o) { o.slots = 0; }), UsageError);
  CHECK_THROWS_AS(build([](LoaderOptions& o) { o.group = 0; }), UsageError);
  CHECK_THROWS_AS(build([](LoaderOptions& o) { o.placement.global_batch = 0; }), UsageError);
  CHECK_THROWS_AS(build([](LoaderOptions& o) { o.placement.rank = 1; }), UsageError);
  CHECK_THROWS_AS(Loader(numbered(0), {}), DataError);
}

TEST_CASE("threads that the system does not start are an error") {
  for (int n : {0, 2}) {
    const testing::Startable limit(n);
    CHECK_THROWS_AS(Loader(numbered(5), options_of(2, 0, 1, 3)), DeviceError);
  }
}
