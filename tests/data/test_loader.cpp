// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include <tutti/data/augment.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/data/memory_dataset.hpp>

#include "core/sanitizers.hpp"
#include "loader_batches.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

// Counts the allocations of all threads while `counting` is true.
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

}  // namespace

#if !defined(TUTTI_TEST_TSAN)  // ThreadSanitizer has its own operator new
// Counts the allocation and then allocates as the original operator does. If the function were inlined, GCC would warn
// that new and free do not match.
[[gnu::noinline]] void* operator new(std::size_t n) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  void* p = std::malloc(n != 0 ? n : 1);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif

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

TEST_CASE("a sample's random numbers depend on seed, epoch and index") {
  const Augmented data(numbered(20), Augment::cifar());
  Loader loader(data, options_of(20, 0, 1, 2));
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    const Batch& b = loader.next();
    for (std::size_t i = 0; i < 20; ++i) {
      Rng rng(42, Purpose::augment, epoch, static_cast<std::uint64_t>(b.indices[i]));
      std::vector<std::uint8_t> image(75);
      std::int32_t label = -1;
      data.read(b.indices[i], rng, Sample{image, label});
      CHECK(std::ranges::equal(image, b.images.subspan(75 * i, 75)));
      CHECK(label == b.labels[i]);
    }
  }
}

TEST_CASE("all ranks together load the same samples as one rank, with augmentation") {
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

TEST_CASE("a loader can start at any position, several times, and with another placement of ranks") {
  const Augmented data(numbered(103), Augment::cifar());
  Loader all(data, options_of(16, 0, 1, 0));
  const auto expected = take(all, 20);
  for (const int threads : {0, 2}) {
    Loader loader(data, options_of(16, 0, 1, threads));
    loader.start(expected[8].after);
    const auto rest = take(loader, 11);
    CHECK(std::equal(rest.begin(), rest.end(), expected.begin() + 9));
    loader.start({});  // starts again while batches are being loaded
    CHECK(take(loader, 20) == expected);
    // Rank 1 of 2 with twice the global batch, starting in the middle of the epoch.
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

TEST_CASE("an evaluation reads the data set once, in order") {
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

TEST_CASE("a batch larger than the data set contains the whole data set") {
  Loader loader(numbered(5), options_of(1'000'000'000, 0, 1, 1));
  CHECK(loader.next().count == 5);
  CHECK(loader.next().epoch == 1);
}

TEST_CASE("the blocks of a data set determine the order") {
  Schema s = tiny();
  s.block = 4;
  const MemoryDataset data(s, std::vector<std::uint8_t>(1000 * 75), std::vector<std::int32_t>(1000));
  Loader loader(data, options_of(1000, 0, 1, 0));
  std::vector<std::int64_t> order(1000);
  permutation(42, 0, order, 4);
  CHECK(std::ranges::equal(loader.next().indices, order));
}

TEST_CASE("a loader allocates no memory in its steady state") {
#if defined(TUTTI_TEST_TSAN)
  std::puts("SKIP: ThreadSanitizer's own new counts nothing");
  return;
#endif
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

TEST_CASE("a program can provide the memory of the batches") {
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
