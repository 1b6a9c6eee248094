// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/data/memory_dataset.hpp>

#include "temp_folder.hpp"

namespace tutti::test {

inline Schema tiny() {
  Schema s;
  s.name = "tiny";
  s.channels = 3;
  s.height = s.width = 5;
  s.classes = 1000;
  s.mean = {0, 0, 0};
  s.stddev = {1, 1, 1};
  return s;
}

inline MemoryDataset numbered(std::size_t n) {
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

inline Copy copy_of(const Batch& b) {
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

inline LoaderOptions options_of(std::int64_t g, int rank, int world, int threads) {
  LoaderOptions o;
  o.placement = {g, rank, world};
  o.threads = threads;
  o.seed = 42;
  o.group = 3;
  return o;
}

inline std::vector<Copy> take(Loader& loader, int n) {
  std::vector<Copy> all;
  for (int i = 0; i < n; ++i) all.push_back(copy_of(loader.next()));
  return all;
}

// A data set with options that make read() slow or make it fail.
struct Troubled {
  Schema s = tiny();
  std::int64_t bad = -1;
  std::set<std::int64_t> several{};  // read() throws a DataError for these indices
  int kind = 0;
  int milliseconds = 0;
  std::shared_ptr<std::atomic<int>> reads = std::make_shared<std::atomic<int>>(0);

  [[nodiscard]] std::int64_t size() const { return 100; }
  [[nodiscard]] const Schema& schema() const { return s; }
  void read(std::int64_t i, Rng&, Sample sample) const {
    ++*reads;
    if (milliseconds > 0) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    if ((i == bad && kind == 0) || several.contains(i)) fail<DataError>("record", "a JPEG", "garbage");
    if (i == bad && kind == 1) throw std::runtime_error("boom");
    if (i == bad && kind == 2) throw 7;
    if (i == bad && kind == 3) fail<CommunicationError>("remote store", "an answer", "none");
    sample.label = static_cast<std::int32_t>(i);
    std::ranges::fill(sample.image, static_cast<std::uint8_t>(i));
  }
};

}  // namespace tutti::test
