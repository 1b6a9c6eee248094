// SPDX-License-Identifier: MIT
#include "tools/trainer/image_records.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/datasets/imagenet/recordio.hpp>

namespace tutti::trainer {

ImageRecords::ImageRecords(const std::string& option, const std::string& given, const std::string& list, Split split)
    : count_(0), files_(paths_of(option, given, list, split, count_, lists_)) {
  for (std::size_t f = 0; f < count_; ++f)
    for (const RecordSpan& s : lists_[f] ? recordio::scan_listed(files_, f, *lists_[f]) : recordio::scan(files_, f))
      places_.push_back({f, s});
  if (places_.empty()) fail<DataError>(option, "images in " + given, "none");
}

std::optional<imagenet::SetFacts> ImageRecords::facts(Split split) const {
  const io::Path& first = files_.path(0);
  auto told = imagenet::read_set_facts(first.parent_path(), split);
  if (told && told->form == "recordio") return told;
  if (!first.filename().string().starts_with("cifar10")) return std::nullopt;
  const Schema cifar = cifar10::schema(split);
  return imagenet::SetFacts{"recordio", cifar.classes, cifar.class_names};
}

std::pair<int, int> ImageRecords::extents(const ImageDecoders& decoders) const {
  std::vector<std::uint8_t> bytes;
  const auto image = read(0, bytes);
  const ImageHeader h = decoders.header(image.encoded, where(0));
  return {h.height, h.width};
}

MemoryDataset ImageRecords::load(const Schema& schema, const ImageDecoders& decoders, std::int64_t most) const {
  const auto n = static_cast<std::size_t>(most > 0 ? std::min(most, size()) : size());
  const std::size_t row = static_cast<std::size_t>(schema.width) * 3,
                    each = row * static_cast<std::size_t>(schema.height);
  std::vector<std::uint8_t> pixels(n * each), bytes;
  std::vector<std::int32_t> labels(n);
  DecodedImage decoded;
  for (std::size_t i = 0; i < n; ++i) {
    const auto image = read(i, bytes);
    const std::string name = where(i);
    if (!(image.label >= 0 && image.label < static_cast<float>(schema.classes)) ||
        image.label != std::floor(image.label))
      fail<DataError>(name, "a label of 0 to " + std::to_string(schema.classes - 1), std::to_string(image.label),
                      "--num-classes sets the number of classes");
    labels[i] = static_cast<std::int32_t>(image.label);
    const ImageHeader h = decoders.header(image.encoded, name);
    if (h.height != schema.height || h.width != schema.width)
      fail<DataError>(name, std::to_string(schema.width) + "x" + std::to_string(schema.height) + " pixels",
                      std::to_string(h.width) + "x" + std::to_string(h.height),
                      "use train_imagenet for images of several sizes");
    decoders.decode(image.encoded, h, {{0, 0, h.width, h.height}, 0, 0, DecodeQuality::accurate}, name, decoded);
    for (int y = 0; y < h.height; ++y)
      std::copy_n(decoded.row(y - decoded.y) - std::ptrdiff_t{3} * decoded.x, row,
                  pixels.data() + i * each + static_cast<std::size_t>(y) * row);
  }
  return {schema, std::move(pixels), std::move(labels)};
}

recordio::Image ImageRecords::read(std::size_t i, std::vector<std::uint8_t>& bytes) const {
  bytes.resize(places_[i].span.length);
  files_.read(places_[i].file, places_[i].span.offset, bytes);
  recordio::unframe(bytes, where(i));
  return recordio::parse_image(bytes, where(i));
}

std::vector<io::Path> ImageRecords::paths_of(const std::string& option, const io::Path& given, const io::Path& list,
                                             Split split, std::size_t& count,
                                             std::vector<std::optional<std::size_t>>& lists) {
  std::vector<io::Path> paths;
  if (std::filesystem::is_directory(given))
    paths = imagenet::find_recordio(given, split);
  else if (is_file(given))
    paths = {given};
  if (paths.empty())
    fail<DataError>(
        option, std::string("a .rec file, or a folder with *") + (split == Split::train ? "train" : "val") + "*.rec",
        std::filesystem::is_directory(given) ? contents_of(given) : "no file or folder at " + given.string());
  count = paths.size();
  if (!list.empty() && count > 1)
    fail<UsageError>(option + "-idx", "one .rec file, which the list is for", std::to_string(count) + " files",
                     "leave the option out: the .idx file next to each .rec file is used");
  if (!list.empty() && !is_file(list)) fail<DataError>(option + "-idx", "a file", "no file at " + list.string());
  for (std::size_t f = 0; f < count; ++f) {
    const io::Path idx = list.empty() ? io::Path(paths[f]).replace_extension(".idx") : list;
    const bool there = is_file(idx);
    lists.push_back(there ? std::optional(paths.size()) : std::nullopt);
    if (there) paths.push_back(idx);
  }
  return paths;
}

}  // namespace tutti::trainer
