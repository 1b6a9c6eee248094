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

// Which files verify has to read, and what is wrong with their names.
struct FoundSplit {
  Form form = Form::packed;
  io::Path place;
  std::vector<io::Path> files;  // none for an image folder
  std::vector<std::string> bad;
  std::optional<imagenet::Opened> images;  // image folder
};

// As open_imagenet looks, but a set that is not whole is found as well. Nothing if there is none.
[[nodiscard]] std::optional<FoundSplit> find_split(const io::Path& folder, Split split);

struct VerifyOptions {
  io::Path folder;
  std::optional<Split> split{};  // both
  int classes = 0;               // 0: what the set tells, else 1000
  bool decode = false;
  int threads = 1;
};

// Prints one line about the files of an image folder that are no images by their names, if there are any.
void print_left_out(const io::Path& place, Split split, const image_folder::LeftOut& left_out);

// Returns how many things are wrong. Throws DataError where there is no set.
[[nodiscard]] std::size_t verify(const VerifyOptions& o);

}  // namespace tutti::data_tool
