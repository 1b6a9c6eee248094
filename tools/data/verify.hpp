// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <tutti/data/records/packed_shard.hpp>
#include <tutti/datasets/imagenet/open.hpp>

#include "tools/data/source.hpp"

namespace tutti::data_tool {

// The files that verify() has to read, and errors in their names.
struct FoundSplit {
  Form form = Form::packed;
  io::Path place;
  std::vector<io::Path> files;  // empty for an image folder
  std::vector<std::string> bad;
  std::optional<imagenet::Opened> images;  // image folder
};

// Searches the places that open_imagenet searches, but also finds an incomplete set. Returns nullopt if there is no
// set.
[[nodiscard]] std::optional<FoundSplit> find_split(const io::Path& folder, Split split);

struct VerifyOptions {
  io::Path folder;
  std::optional<Split> split{};  // nullopt: both
  int classes = 0;               // 0: the number in the set, or 1000 if the set has none
  bool decode = false;
  int threads = 1;
};

// Prints one line about files of an image folder whose names are not those of images, if there are any.
void print_left_out(const io::Path& place, Split split, const image_folder::LeftOut& left_out);

// Returns the number of errors. Throws DataError if there is no set.
[[nodiscard]] std::size_t verify(const VerifyOptions& o);

}  // namespace tutti::data_tool
