// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/data/images/image_decoder.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/data/records/recordio_reader.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/datasets/cifar10/cifar10.hpp>
#include <tutti/datasets/imagenet/set_facts.hpp>

// Small images of one size in RecordIO files (cifar10_train.rec, with PNG or JPEG, as im2rec packs them), decoded once
// and kept in memory.
namespace tutti::trainer {

// The RecordIO files of an option. given: a .rec file, or a folder with the .rec files of the split. list: the .idx
// file of a single .rec file. If it is empty, the .idx file next to the .rec file is used if it exists.
class ImageRecords {
 public:
  ImageRecords(const std::string& option, const std::string& given, const std::string& list, Split split);

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(places_.size()); }

  // Returns facts about the classes: from the file that tutti-data wrote next to the files, or CIFAR-10's if the file
  // names say so.
  [[nodiscard]] std::optional<imagenet::SetFacts> facts(Split split) const;

  // Returns height and width of the first image.
  [[nodiscard]] std::pair<int, int> extents(const ImageDecoders& decoders) const;

  // Returns the first `most` images, or all if `most` is 0. Each must have the size and a class of the schema.
  [[nodiscard]] MemoryDataset load(const Schema& schema, const ImageDecoders& decoders, std::int64_t most) const;

 private:
  struct Place {
    std::size_t file;
    RecordSpan span;
  };

  [[nodiscard]] std::string where(std::size_t i) const {
    return files_.path(places_[i].file).string() + " record " + std::to_string(i);
  }
  [[nodiscard]] recordio::Image read(std::size_t i, std::vector<std::uint8_t>& bytes) const;

  // Returns the .rec files, followed by their lists.
  [[nodiscard]] static std::vector<io::Path> paths_of(const std::string& option, const io::Path& given,
                                                      const io::Path& list, Split split, std::size_t& count,
                                                      std::vector<std::optional<std::size_t>>& lists);

  std::size_t count_;
  std::vector<std::optional<std::size_t>> lists_;
  ShardFiles files_;
  std::vector<Place> places_;
};

}  // namespace tutti::trainer
