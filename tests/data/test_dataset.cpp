// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/data/memory_dataset.hpp>

#include "temp_folder.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

Schema small_schema() {
  Schema s;
  s.name = "small";
  s.channels = 2;
  s.height = 3;
  s.width = 4;
  s.classes = 5;
  s.mean = {1, 2};
  s.stddev = {3, 4};
  return s;
}

MemoryDataset small_dataset(std::size_t n) {
  std::vector<std::uint8_t> pixels(n * 24);
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{0});
  std::vector<std::int32_t> labels(n);
  for (std::size_t i = 0; i < n; ++i) labels[i] = static_cast<std::int32_t>(i % 5);
  return {small_schema(), std::move(pixels), std::move(labels)};
}

}  // namespace

TEST_CASE("a memory data set and its type-erased form give the same samples") {
  const MemoryDataset memory = small_dataset(7);
  const AnyDataset any = memory;
  CHECK(any.size() == 7);
  CHECK(any.schema().name == "small");
  Rng rng(0, Purpose::augment);
  for (std::int64_t i = 0; i < 7; ++i) {
    std::vector<std::uint8_t> image(24);
    std::int32_t label = -1;
    any.read(i, rng, Sample{image, label});
    CHECK(label == i % 5);
    CHECK(image[0] == static_cast<std::uint8_t>(24 * i));
    CHECK(image[23] == static_cast<std::uint8_t>(24 * i + 23));
  }
  CHECK(any.schema().image_bytes() == 24);
}

TEST_CASE("copies and first(n) of a memory data set share the pixels") {
  const MemoryDataset all = small_dataset(7);
  const MemoryDataset part = all.first(3);
  CHECK(part.size() == 3);
  CHECK(all.first(100).size() == 7);
  CHECK(part.image(2).data() == all.image(2).data());
}

TEST_CASE("reading an index outside the data set, or into a slot of another size, is refused") {
  const MemoryDataset d = small_dataset(3).first(2);
  Rng rng(0, Purpose::augment);
  std::vector<std::uint8_t> image(24), wrong(23);
  std::int32_t label = 0;
  CHECK_THROWS_AS(d.read(-1, rng, Sample{image, label}), UsageError);
  CHECK_THROWS_AS(d.read(2, rng, Sample{image, label}), UsageError);
  CHECK_THROWS_AS(d.read(0, rng, Sample{wrong, label}), UsageError);
  CHECK_NOTHROW(d.read(1, rng, Sample{image, label}));
}

TEST_CASE("a memory data set refuses pixels and labels that do not fit its schema") {
  CHECK_THROWS_AS(MemoryDataset(small_schema(), std::vector<std::uint8_t>(47), {0, 1}), UsageError);
  CHECK_THROWS_AS(MemoryDataset(small_schema(), std::vector<std::uint8_t>(48), {0, 5}), UsageError);
  CHECK_THROWS_AS(MemoryDataset(small_schema(), std::vector<std::uint8_t>(48), {0, -1}), UsageError);
}

TEST_CASE("a schema with invalid values is refused") {
  const auto broken = [](auto change) {
    Schema s = small_schema();
    change(s);
    return message_of<UsageError>([&] { s.check(); });
  };
  CHECK(broken([](Schema&) {}).empty());
  CHECK(contains(broken([](Schema& s) { s.height = 0; }), "height"));
  CHECK(contains(broken([](Schema& s) { s.width = 1 << 20; }), "width"));
  CHECK(contains(broken([](Schema& s) { s.channels = 0; }), "channels"));
  CHECK(contains(broken([](Schema& s) { s.classes = 0; }), "class"));
  CHECK(contains(broken([](Schema& s) { s.mean.pop_back(); }), "mean"));
  CHECK(contains(broken([](Schema& s) { s.block = 0; }), "blocks"));
  CHECK(contains(broken([](Schema& s) { s.stddev.push_back(1); }), "deviation"));
  CHECK(contains(broken([](Schema& s) { s.stddev[1] = 0; }), "deviation"));
  CHECK(contains(broken([](Schema& s) { s.class_names = {"one"}; }), "name"));
}

TEST_CASE("error messages describe the contents of a folder") {
  const TempFolder folder;
  CHECK(contains(contents_of(folder / "none"), "no folder"));
  CHECK(contains(contents_of(folder.path()), "empty folder"));
  for (int i = 0; i < 11; ++i) write_text(folder / ("f" + std::to_string(10 + i)), "x");
  CHECK(contains(contents_of(folder.path()), "f10, f11, f12, f13, f14, f15, f16, f17 and 3 more"));
  CHECK(contains(contents_of(folder / "f10"), "not a folder"));
  CHECK(is_file(folder / "f10"));
  CHECK_FALSE(is_file(folder.path()));
  CHECK(size_of_file(folder / "f10") == 1);
  CHECK_THROWS_AS((void)size_of_file(folder / "none"), DataError);
}
