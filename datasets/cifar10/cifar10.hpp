// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/io/file.hpp>

// CIFAR-10 in its binary version: https://www.cs.toronto.edu/~kriz/cifar.html. A record is one label byte and 3,072
// bytes of a 32x32 image, [3, 32, 32] (red, green, blue); a file has 10,000 records.
namespace tutti {

struct Cifar10Options {  // selects files and records of CIFAR-10
  // true: requires the official set, that is each file with 10,000 records. false: reads the files that exist, each
  // with its whole records (at least one).
  bool strict = true;
};

namespace cifar10 {

inline constexpr std::int64_t channels = 3, height = 32, width = 32;
inline constexpr std::size_t plane = 1024, image_bytes = 3 * plane, record_bytes = 1 + image_bytes;
inline constexpr std::size_t records_per_file = 10000;
inline constexpr std::size_t most_records = 1'000'000;  // in a file of an unofficial set
inline constexpr std::string_view fetch_hint =
    "prepare-data --out DIR, in a source tree datasets/cifar10/prepare --out DIR, fetches and checks the data";

// Mean and deviation per channel on the 0..255 scale, as averages over the training images of the mean and the standard
// deviation of each image. Most published recipes use these numbers (over all pixels the deviations are larger, about
// 63, 62, 67).
[[nodiscard]] inline Schema schema(Split split) {
  Schema s;
  s.name = std::string("cifar10 ") + name_of(split);
  s.channels = channels;
  s.height = height;
  s.width = width;
  s.classes = 10;
  s.mean = {125.307F, 122.961F, 113.8575F};
  s.stddev = {51.5865F, 50.847F, 51.255F};
  s.class_names = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
  return s;
}

// Throws DataError if the file begins like a pickle of protocol 2, the format of the Python version of the data set.
inline void check_not_pickle(std::span<const std::uint8_t> start, std::string_view where) {
  if (start.size() >= 2 && start[0] == 0x80 && start[1] == 0x02)
    fail<DataError>(where, "a batch file of the binary version", "a Python pickle", fetch_hint);
}

// Throws DataError unless `bytes` is a length that a batch file may have; `where` names the file.
inline void check_size(std::uintmax_t bytes, std::string_view where, bool strict) {
  constexpr std::uintmax_t official = records_per_file * record_bytes;
  const std::string got = std::to_string(bytes) + " bytes (" + std::to_string(bytes / record_bytes) + " records and " +
                          std::to_string(bytes % record_bytes) + " bytes)";
  if (strict && bytes != official)
    fail<DataError>(where, {"10000 records of 3073 bytes, ", official, " bytes"}, got,
                    {std::string(bytes < official ? "the file is truncated; " : "the file is too long; "), fetch_hint});
  if (bytes == 0 || bytes % record_bytes != 0 || bytes / record_bytes > most_records)
    fail<DataError>(where, "1 to 1000000 complete records of 3073 bytes", got, fetch_hint);
}

// Appends the images of one batch file as [n, 32, 32, 3] and their labels. Throws DataError.
inline void parse(std::span<const std::uint8_t> file, std::string_view where, bool strict,
                  std::vector<std::uint8_t>& pixels, std::vector<std::int32_t>& labels) {
  check_not_pickle(file, where);
  check_size(file.size(), where, strict);
  const std::size_t n = file.size() / record_bytes;
  for (std::size_t i = 0; i < n; ++i)
    if (const unsigned label = file[i * record_bytes]; label > 9)
      fail<DataError>(where, "labels of 0 to 9", {"label ", label, " in record ", i},
                      "records are counted from 0; the file is damaged or not CIFAR-10");
  std::size_t to = pixels.size();
  pixels.resize(to + n * image_bytes);
  labels.reserve(labels.size() + n);
  for (std::size_t i = 0; i < n; ++i, to += image_bytes) {
    const std::uint8_t* record = file.data() + i * record_bytes;
    labels.push_back(record[0]);
    const std::uint8_t* red = record + 1;
    std::uint8_t* pixel = pixels.data() + to;
    for (std::size_t k = 0; k < plane; ++k, pixel += 3) {
      pixel[0] = red[k];
      pixel[1] = red[plane + k];
      pixel[2] = red[2 * plane + k];
    }
  }
}

[[nodiscard]] inline std::vector<std::string> files(Split split) {  // names of a split's files
  if (split == Split::test) return {"test_batch.bin"};
  return {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
}

// Returns the folder that holds the batch files: `folder` itself or its cifar-10-batches-bin. Throws DataError if
// neither holds them.
[[nodiscard]] inline std::filesystem::path find(const std::filesystem::path& folder, Split split) {
  const auto holds = [](const std::filesystem::path& p, std::string_view suffix) {
    return is_file(p / ("data_batch_1" + std::string(suffix))) || is_file(p / ("test_batch" + std::string(suffix)));
  };
  for (const auto& p : {folder, folder / "cifar-10-batches-bin"}) {
    for (const auto& name : files(split))
      if (is_file(p / name)) return p;
  }
  for (const auto& p : {folder, folder / "cifar-10-batches-py"})
    if (holds(p, ""))
      fail<DataError>("cifar10", "the binary version of CIFAR-10 (data_batch_1.bin, ...)",
                      {"the Python version (pickle files) in ", p.native()}, fetch_hint);
  fail<DataError>("cifar10",
                  {files(split).front(), " in ", folder.native(), " or in its subfolder cifar-10-batches-bin"},
                  contents_of(folder), fetch_hint);
}

}  // namespace cifar10

// Reads a split into memory; train: 50,000 images, test: 10,000. `folder` is cifar-10-batches-bin or its parent. Throws
// DataError if a file is missing, has a wrong length or a label over 9.
[[nodiscard]] inline MemoryDataset load_cifar10(const std::filesystem::path& folder, Split split,
                                                const Cifar10Options& options = {}) {
  const auto found = cifar10::find(folder, split);
  std::vector<std::filesystem::path> paths;
  std::size_t records = 0;
  for (const auto& name : cifar10::files(split)) {
    const auto path = found / name;
    if (!is_file(path)) {
      if (!options.strict) continue;
      fail<DataError>("cifar10", {"the file ", path.native()}, contents_of(found), cifar10::fetch_hint);
    }
    std::array<std::uint8_t, 2> start{};
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(start.data()), start.size());
    cifar10::check_not_pickle(start, "cifar10 " + path.string());
    const auto bytes = size_of_file(path);
    cifar10::check_size(bytes, "cifar10 " + path.string(), options.strict);
    records += static_cast<std::size_t>(bytes) / cifar10::record_bytes;
    paths.push_back(path);
  }
  std::vector<std::uint8_t> pixels;
  std::vector<std::int32_t> labels;
  pixels.reserve(records * cifar10::image_bytes);
  labels.reserve(records);
  for (const auto& path : paths) {
    const auto file = io::read_file<std::vector<std::uint8_t>>(path, cifar10::most_records * cifar10::record_bytes);
    cifar10::parse(file, "cifar10 " + path.string(), options.strict, pixels, labels);
  }
  return {cifar10::schema(split), std::move(pixels), std::move(labels)};
}

}  // namespace tutti
