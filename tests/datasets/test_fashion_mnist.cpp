// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <tutti/datasets/fashion_mnist/fashion_mnist.hpp>
#include <tutti/datasets/fashion_mnist/gzip.hpp>

#include "../data/temp_folder.hpp"

using namespace tutti;
using namespace tutti::test;
namespace fs = std::filesystem;

namespace {

std::vector<std::uint8_t> idx(const std::vector<std::uint32_t>& extents, std::size_t bytes) {
  std::vector<std::uint8_t> f{0, 0, 8, static_cast<std::uint8_t>(extents.size())};
  for (const auto e : extents)
    for (const int shift : {24, 16, 8, 0}) f.push_back(static_cast<std::uint8_t>(e >> shift));
  for (std::size_t i = 0; i < bytes; ++i) f.push_back(static_cast<std::uint8_t>(i % 10));
  return f;
}

constexpr FashionMnistOptions loose{.strict = false};

void write_set(const fs::path& folder, const std::string& split, std::uint32_t n) {
  write_file(folder / (split + "-images-idx3-ubyte"), idx({n, 28, 28}, n * 784));
  write_file(folder / (split + "-labels-idx1-ubyte"), idx({n}, n));
}

}  // namespace

TEST_CASE("IDX files are read, plain and gzipped, from the folder itself or its parent") {
  const TempFolder folder;
  const auto at = folder / "fashion-mnist";
  write_set(at, "train", 12);
  write_set(at, "t10k", 3);
  for (int packed = 0; packed < 2; ++packed) {
    for (const auto& p : {folder.path(), at}) {
      const auto train = load_fashion_mnist(p, Split::train, loose);
      CHECK(train.size() == 12);
      CHECK(train.schema().image_bytes() == 784);
      CHECK(train.schema().class_names[9] == "Ankle boot");
      CHECK(train.label(11) == 1);
      CHECK(train.image(1)[0] == 784 % 10);
      CHECK(load_fashion_mnist(p, Split::test, loose).size() == 3);
    }
    REQUIRE(std::system(("gzip -f '" + at.string() + "'/*").c_str()) == 0);
  }
}

TEST_CASE("the error for missing Fashion-MNIST files explains how to get them") {
  const TempFolder folder;
  const auto message = [&](const fs::path& p) {
    return message_of<DataError>([&] { (void)load_fashion_mnist(p, Split::train, loose); });
  };
  CHECK(contains(message(folder / "none"), "train-images-idx3-ubyte or train-images-idx3-ubyte.gz in "));
  CHECK(contains(message(folder / "none"), "no folder"));
  CHECK(contains(message(folder.path()), "dataset-fashion-mnist"));
  CHECK(contains(message(folder.path()), "datasets/fashion_mnist/prepare --out DIR"));
  write_file(folder / "train-images-idx3-ubyte", idx({1, 28, 28}, 784));
  CHECK(contains(message(folder.path()), "train-labels-idx1-ubyte or train-labels-idx1-ubyte.gz in "));
}

TEST_CASE("gzipped IDX files that are damaged, too long or cannot be unpacked are refused") {
  const TempFolder folder;
  const auto file = folder / "train-images-idx3-ubyte.gz";
  const auto message = [&](std::size_t most = 1 << 20) {
    return message_of<DataError>([&] { (void)fashion_mnist::read_gzip(file, most, "IMAGES"); });
  };
  write_set(folder.path(), "train", 12);
  REQUIRE(std::system(("gzip -f '" + (folder / "train-images-idx3-ubyte").string() + "'").c_str()) == 0);
  CHECK(message(12 * 784 + 16).empty());
  CHECK(contains(message(12 * 784 + 15), "[IMAGES] expected at most 9423 bytes unpacked, got more"));
  CHECK(contains(message(0), "got more"));

  const std::string path = std::getenv("PATH");
  setenv("PATH", folder.path().c_str(), 1);
  const auto none = message();
  setenv("PATH", path.c_str(), 1);
  CHECK(contains(none, "the program gzip"));
  CHECK(contains(none, "datasets/fashion_mnist/prepare --out DIR"));

  std::string whole;
  {
    std::ifstream in(file, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::string other = whole;
  other[whole.size() / 2] = static_cast<char>(other[whole.size() / 2] ^ 1);
  for (const std::string& damaged :
       {whole.substr(0, whole.size() - 1), whole.substr(0, 9), other, whole + "more", std::string("no gzip file")}) {
    write_file(file, std::vector<std::uint8_t>(damaged.begin(), damaged.end()));
    CHECK(contains(message(), "[IMAGES] expected a complete gzip file"));
    CHECK(contains(message_of<DataError>([&] { (void)load_fashion_mnist(folder.path(), Split::train, loose); }),
                   "train-images-idx3-ubyte.gz"));
  }
}

TEST_CASE("damaged IDX files are refused") {
  const auto images = idx({2, 28, 28}, 1568), labels = idx({2}, 2);
  const auto message = [&](const std::vector<std::uint8_t>& i, const std::vector<std::uint8_t>& l,
                           bool strict = false) {
    return message_of<DataError>([&] { (void)fashion_mnist::parse(i, "IMAGES", l, "LABELS", Split::train, strict); });
  };
  CHECK(message(images, labels).empty());
  CHECK(contains(message(images, labels, true), "expected 60000 images, got 2"));
  for (std::size_t n = 0; n < images.size(); n += n < 20 ? 1 : 97) {
    const std::vector<std::uint8_t> cut(images.begin(), images.begin() + static_cast<std::ptrdiff_t>(n));
    CHECK(contains(message(cut, labels), "[IMAGES]"));
    CHECK(contains(message(cut, labels), "truncated"));
  }
  CHECK(contains(message(idx({2, 28, 28}, 1569), labels), "too long"));
  CHECK(contains(message(images, idx({2}, 3)), "[LABELS]"));
  CHECK(contains(message(images, idx({3}, 3)), "as many labels as images, 2, got 3"));
  CHECK(contains(message(idx({2, 28, 27}, 1512), labels), "28x27"));
  CHECK(contains(message(idx({0, 28, 28}, 0), idx({0}, 0)), "extents of 1 or more"));
  CHECK(contains(message(labels, labels), "[IMAGES]"));
  CHECK(contains(message(images, images), "got 0 0 8 3"));
  // The product of the extents overflows 64 bits: in the first case to a wrong size, in the second to the right size,
  // 0.
  CHECK(contains(message(idx({0xffffffff, 0xffffffff, 0xffffffff}, 784), labels), "truncated"));
  CHECK(contains(message(idx({0x80000000, 0x80000000, 4}, 0), labels), "truncated"));
  auto high = labels;
  high.back() = 10;
  CHECK(contains(message(images, high), "label 10 of image 1"));
  auto floats = images;
  floats[2] = 13;
  CHECK(contains(message(floats, labels), "got 0 0 13 3"));
}

TEST_CASE("the real Fashion-MNIST images have the mean and deviation of the schema") {
  if (!fs::exists(fashion_mnist::debian_folder)) {
    std::puts("SKIP: the package dataset-fashion-mnist is not installed");
    return;
  }
  const auto train = load_fashion_mnist("", Split::train);
  CHECK(load_fashion_mnist(fashion_mnist::debian_folder, Split::test).size() == 10000);
  REQUIRE(train.size() == 60000);
  double sum = 0, squares = 0;
  std::vector<int> count(10);
  for (std::int64_t i = 0; i < train.size(); ++i) {
    ++count[static_cast<std::size_t>(train.label(i))];
    std::int64_t s = 0, q = 0;
    for (const std::int64_t p : train.image(i)) s += p, q += p * p;
    sum += static_cast<double>(s);
    squares += static_cast<double>(q);
  }
  const double n = 60000.0 * 784, mean = sum / n;
  CHECK(std::abs(mean - train.schema().mean[0]) < 1e-3);
  CHECK(std::abs(std::sqrt(squares / n - mean * mean) - train.schema().stddev[0]) < 1e-3);
  for (const int c : count) CHECK(c == 6000);
}
