// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/datasets/fashion_mnist/gzip.hpp>
#include <tutti/datasets/fashion_mnist/idx.hpp>
#include <tutti/io/file.hpp>

// Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 28x28 grey images of ten kinds of clothes in MNIST's format.
namespace tutti {

struct FashionMnistOptions {  // selects files and images of Fashion-MNIST
  bool strict = true;         // 60,000 and 10,000 images; otherwise any number from 1
};

namespace fashion_mnist {

inline constexpr std::int64_t side = 28;
inline constexpr std::size_t most_bytes = std::size_t{1} << 28;
// Debian's package dataset-fashion-mnist installs into this folder.
inline constexpr const char* debian_folder = "/usr/share/datasets/fashion-mnist";
inline constexpr std::string_view fetch_hint =
    "apt-get install dataset-fashion-mnist, or datasets/fashion_mnist/prepare --out DIR, fetches the data";

// Mean and standard deviation are those of the 60,000 training images.
[[nodiscard]] inline Schema schema(Split split) {
  Schema s;
  s.name = std::string("fashion_mnist ") + name_of(split);
  s.channels = 1;
  s.height = s.width = side;
  s.classes = 10;
  s.mean = {72.9404F};
  s.stddev = {90.0212F};
  s.class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                   "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  return s;
}

[[nodiscard]] inline std::string file_name(Split split, bool images) {  // of images or of labels
  return std::string(split == Split::train ? "train" : "t10k") + (images ? "-images-idx3-ubyte" : "-labels-idx1-ubyte");
}

// Returns a data set from the unpacked contents of an image file and its label file. Throws DataError.
[[nodiscard]] inline MemoryDataset parse(std::span<const std::uint8_t> image_file, std::string_view image_where,
                                         std::span<const std::uint8_t> label_file, std::string_view label_where,
                                         Split split, bool strict) {
  const IdxView images = parse_idx(image_file, 3, image_where);
  const IdxView labels = parse_idx(label_file, 1, label_where);
  if (images.extents[1] != side || images.extents[2] != side)
    fail<DataError>(image_where, "images of 28x28", {images.extents[1], "x", images.extents[2]});
  const std::int64_t official = split == Split::train ? 60000 : 10000;
  if (strict && images.extents[0] != official)
    fail<DataError>(image_where, {official, " images"}, images.extents[0], fetch_hint);
  if (labels.extents[0] != images.extents[0])
    fail<DataError>(label_where, {"as many labels as images, ", images.extents[0]}, labels.extents[0], fetch_hint);
  for (std::size_t i = 0; i < labels.data.size(); ++i)
    if (labels.data[i] > 9)
      fail<DataError>(label_where, "labels of 0 to 9", {"label ", labels.data[i], " of image ", i},
                      "images are counted from 0; the file is damaged");
  return {schema(split), {images.data.begin(), images.data.end()}, {labels.data.begin(), labels.data.end()}};
}

// Returns the folder that holds the image file of the split, plain or with .gz: `folder` itself or its fashion-mnist.
[[nodiscard]] inline std::filesystem::path find(const std::filesystem::path& folder, Split split) {
  const std::string name = file_name(split, true);
  for (const auto& p : {folder, folder / "fashion-mnist"})
    if (is_file(p / name) || is_file(p / (name + ".gz"))) return p;
  fail<DataError>("fashion_mnist",
                  {name, " or ", name, ".gz in ", folder.native(), " or in its subfolder fashion-mnist"},
                  contents_of(folder), fetch_hint);
}

// Reads NAME. If it does not exist, unpacks NAME.gz. Sets `path` to the file that was read.
[[nodiscard]] inline std::vector<std::uint8_t> read(std::filesystem::path& path) {
  if (is_file(path)) return io::read_file<std::vector<std::uint8_t>>(path, most_bytes);
  const auto folder = path.parent_path();
  path += ".gz";
  if (!is_file(path))
    fail<DataError>("fashion_mnist", {path.stem().native(), " or ", path.filename().native(), " in ", folder.native()},
                    contents_of(folder), fetch_hint);
  return read_gzip(path, most_bytes, "fashion_mnist " + path.string());
}

}  // namespace fashion_mnist

// Reads a split into memory; train: 60,000 images, test: 10,000. `folder` or its subfolder fashion-mnist has the four
// IDX files, plain or gzipped; the default is Debian's folder. Throws DataError if a file is missing, damaged or of
// another shape.
[[nodiscard]] inline MemoryDataset load_fashion_mnist(const std::filesystem::path& folder, Split split,
                                                      const FashionMnistOptions& options = {}) {
  const auto found = fashion_mnist::find(folder.empty() ? fashion_mnist::debian_folder : folder, split);
  auto image_path = found / fashion_mnist::file_name(split, true);
  auto label_path = found / fashion_mnist::file_name(split, false);
  const auto labels = fashion_mnist::read(label_path);
  const auto images = fashion_mnist::read(image_path);
  return fashion_mnist::parse(images, "fashion_mnist " + image_path.string(), labels,
                              "fashion_mnist " + label_path.string(), split, options.strict);
}

}  // namespace tutti
