// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/datasets/cifar10/cifar10.hpp>

#include "../data/temp_folder.hpp"

using namespace tutti;
using namespace tutti::test;
namespace fs = std::filesystem;

namespace {

// Returns n records. The label of record i is i % 10, and channel c of its pixel k is i + 3 k + c.
std::vector<std::uint8_t> batch(std::size_t n) {
  std::vector<std::uint8_t> file;
  file.reserve(n * 3073);
  for (std::size_t i = 0; i < n; ++i) {
    file.push_back(static_cast<std::uint8_t>(i % 10));
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t k = 0; k < 1024; ++k) file.push_back(static_cast<std::uint8_t>(i + 3 * k + c));
  }
  return file;
}

constexpr Cifar10Options loose{.strict = false};

}  // namespace

TEST_CASE("batch files of any number of records are read from the folder itself or its parent") {
  const TempFolder folder;
  const auto bin = folder / "cifar-10-batches-bin";
  write_file(bin / "data_batch_1.bin", batch(3));
  write_file(bin / "data_batch_4.bin", batch(2));
  write_file(bin / "test_batch.bin", batch(1));
  for (const auto& p : {folder.path(), bin, fs::path(bin.string() + "/")}) {
    const auto train = load_cifar10(p, Split::train, loose);
    CHECK(train.size() == 5);
    CHECK(train.schema().name == "cifar10 train");
    CHECK(train.schema().class_names[3] == "cat");
    CHECK(train.label(2) == 2);
    CHECK(train.label(3) == 0);
    for (std::size_t k = 0; k < 1024; ++k)
      for (std::size_t c = 0; c < 3; ++c)
        REQUIRE(train.image(2)[3 * k + c] == static_cast<std::uint8_t>(2 + 3 * k + c));
    CHECK(load_cifar10(p, Split::test, loose).size() == 1);
  }
}

TEST_CASE("the error for a missing folder lists what was searched for, what exists and which script fetches it") {
  const TempFolder folder;
  const auto message = [&](const fs::path& p, Split s = Split::train) {
    return message_of<DataError>([&] { (void)load_cifar10(p, s); });
  };
  const auto none = message(folder / "none");
  CHECK(contains(none, "data_batch_1.bin in " + (folder / "none").string()));
  CHECK(contains(none, "no folder"));
  CHECK(contains(none, "datasets/cifar10/prepare --out DIR"));
  CHECK(contains(message(folder.path()), "the empty folder"));
  write_text(folder / "cifar-10-binary.tar.gz", "x");
  CHECK(contains(message(folder.path()), "with cifar-10-binary.tar.gz"));
  write_text(folder / "file", "x");
  CHECK(contains(message(folder / "file"), "not a folder"));
  // A folder with that name is not a batch file.
  fs::create_directories(folder / "data_batch_1.bin");
  CHECK(contains(message(folder.path()), "expected data_batch_1.bin in"));
}

TEST_CASE("the error for one missing batch file names the file") {
  const TempFolder folder;
  const std::vector<std::uint8_t> zeros(30'730'000);
  for (const int i : {1, 2, 3, 5}) write_file(folder / ("data_batch_" + std::to_string(i) + ".bin"), zeros);
  const auto message = message_of<DataError>([&] { (void)load_cifar10(folder.path(), Split::train); });
  CHECK(contains(message, "expected the file " + (folder / "data_batch_4.bin").string()));
  CHECK(contains(message, "data_batch_1.bin, data_batch_2.bin, data_batch_3.bin, data_batch_5.bin"));
  write_file(folder / "data_batch_4.bin", zeros);
  CHECK(load_cifar10(folder.path(), Split::train).size() == 50000);
}

TEST_CASE("a truncated file, or a file that is too long, is refused, and the error gives its name and size") {
  const TempFolder folder;
  const auto message = [&](std::size_t bytes, bool strict) {
    write_file(folder / "test_batch.bin", std::vector<std::uint8_t>(bytes));
    return message_of<DataError>([&] { (void)load_cifar10(folder.path(), Split::test, {.strict = strict}); });
  };
  const auto truncated = message(30'729'999, true);
  CHECK(contains(truncated, "test_batch.bin"));
  CHECK(contains(truncated, "30729999 bytes (9999 records and 3072 bytes)"));
  CHECK(contains(truncated, "truncated"));
  CHECK(contains(message(30'730'001, true), "too long"));
  CHECK(contains(message(3073 * 9999, true), "truncated"));
  CHECK(contains(message(3073 * 10001, true), "too long"));
  CHECK(message(30'730'000, true).empty());
  CHECK(contains(message(0, true), "truncated"));
  CHECK(contains(message(0, false), "complete records"));
  CHECK(contains(message(3072, false), "complete records"));
  CHECK(contains(message(3074, false), "complete records"));
  CHECK(message(3073, false).empty());
}

TEST_CASE("a label over 9 is refused, and the error names the file and the record") {
  const TempFolder folder;
  auto file = batch(20);
  file[17 * 3073] = 10;
  write_file(folder / "data_batch_1.bin", file);
  const auto message = message_of<DataError>([&] { (void)load_cifar10(folder.path(), Split::train, loose); });
  CHECK(contains(message, "data_batch_1.bin"));
  CHECK(contains(message, "label 10 in record 17"));
}

TEST_CASE("the Python version of CIFAR-10 is recognised in all its forms") {
  const TempFolder folder;
  const auto message = [](const fs::path& p, Split s) {
    return message_of<DataError>([&] { (void)load_cifar10(p, s, loose); });
  };
  const std::vector<std::uint8_t> pickle{0x80, 0x02, '}', 'q', 0x01};
  write_file(folder / "cifar-10-batches-py" / "data_batch_1", pickle);
  write_file(folder / "cifar-10-batches-py" / "test_batch", pickle);
  for (const auto& p : {folder.path(), folder / "cifar-10-batches-py"})
    for (const Split s : {Split::train, Split::test}) {
      CHECK(contains(message(p, s), "Python version (pickle files) in " + (folder / "cifar-10-batches-py").string()));
      CHECK(contains(message(p, s), "datasets/cifar10/prepare"));
    }
  // A pickle is recognised under any name.
  write_file(folder / "data_batch_1.bin", pickle);
  CHECK(contains(message(folder.path(), Split::train), "a Python pickle"));
}

TEST_CASE("the real CIFAR-10 images have the mean and deviation of the schema") {
  const auto data = real_data();
  if (data.empty() || (!fs::exists(data / "cifar-10-batches-bin") && !fs::exists(data / "test_batch.bin"))) {
    std::puts("SKIP: the real CIFAR-10 is neither in $TUTTI_DATA nor beside the source tree");
    return;
  }
  const auto train = load_cifar10(data, Split::train);
  const auto test = load_cifar10(data, Split::test);
  REQUIRE(train.size() == 50000);
  REQUIRE(test.size() == 10000);
  std::array<int, 10> count{};
  std::array<double, 3> means{}, deviations{};  // means over the images of each image's mean and deviation
  for (std::int64_t i = 0; i < train.size(); ++i) {
    ++count[static_cast<std::size_t>(train.label(i))];
    const auto image = train.image(i);
    std::array<double, 3> sum{}, squares{};
    for (std::size_t k = 0; k < image.size(); ++k) {
      const double p = image[k];
      sum[k % 3] += p;
      squares[k % 3] += p * p;
    }
    for (std::size_t c = 0; c < 3; ++c) {
      const double mean = sum[c] / 1024;
      means[c] += mean / 50000;
      deviations[c] += std::sqrt(squares[c] / 1024 - mean * mean) / 50000;
    }
  }
  for (const int c : count) CHECK(c == 5000);
  // Copies of the images that were stored as JPEG differ slightly. The schema has the numbers of the original images.
  for (std::size_t c = 0; c < 3; ++c) {
    CHECK(std::abs(means[c] - train.schema().mean[c]) < 0.5);
    CHECK(std::abs(deviations[c] - train.schema().stddev[c]) < 1);
  }
}
