// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tutti/core/threads/threads.hpp>
#include <tutti/datasets/imagenet/open.hpp>

#include "tools/data/images.hpp"
#include "tools/data/source.hpp"

namespace tutti::data_tool {

enum class Command { convert, preprocess, resize, verify, info };

struct Options {
  Command command = Command::convert;
  std::string in, out;
  std::string to = "packed", split, dataset, username, access_key;
  std::optional<imagenet::Form> from{};
  ImageRules rules{};
  std::int64_t shards = 0, validation_shards = 0;  // 0: the default numbers
  std::uint64_t seed = 0;
  std::int64_t start = 0;
  std::optional<std::int64_t> last{};
  int classes = 0, threads = usable_cores();
  bool shuffle = true, force = false, decode = false;
  std::string text{};  // text to print for --help or --version; otherwise empty
};

// Reads the words after the program's name. Throws UsageError that names the invalid word.
[[nodiscard]] Options parse_options(const std::vector<std::string>& words);

}  // namespace tutti::data_tool
