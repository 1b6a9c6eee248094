// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/records/recordio_reader.hpp>
#include <tutti/io/file.hpp>

// Reads ImageNet as MXNet's im2rec writes it: train.rec and val.rec, or several numbered parts of each. Labels count
// from 0.
namespace tutti::imagenet {

// The words in names of files and folders that name a split.
[[nodiscard]] inline std::vector<std::string_view> words_of(Split split) {
  if (split == Split::train) return {"train"};
  return {"validation", "val", "valid", "test"};
}

// Returns true if `name` has `word` between dots, dashes and underscores.
[[nodiscard]] inline bool has_word(std::string_view name, std::string_view word) {
  for (std::size_t begin = 0; begin <= name.size();) {
    const auto end = std::min(name.find_first_of("._-", begin), name.size());
    if (name.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

// Returns the .rec files of a split in `folder`: those with its word in their names, e.g. train.rec,
// imagenet-train-480.rec or train_0.rec, train_1.rec, ... Returns an empty list if there are no such files. Throws
// DataError if they are not one set.
[[nodiscard]] inline std::vector<io::Path> find_recordio(const io::Path& folder, Split split) {
  std::vector<io::Path> found;
  std::error_code error;
  for (const auto word : words_of(split)) {
    for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
      if (it->path().extension() == ".rec" && has_word(it->path().stem().string(), word)) found.push_back(it->path());
    if (!found.empty()) break;
  }
  std::sort(found.begin(), found.end());
  if (found.size() < 2) return found;
  // Parts of a set have the same name with numbers 0, 1, ... at the end.
  std::map<std::uint64_t, io::Path> parts;
  std::string stem;
  for (const auto& path : found) {
    const std::string name = path.stem().string();
    const auto digits = name.size() - (name.find_last_not_of("0123456789") + 1);
    const std::string start = name.substr(0, name.size() - digits);
    if (stem.empty()) stem = start;
    const bool numbered = digits > 0 && digits < 10 && (start.ends_with('_') || start.ends_with('-'));
    if (!numbered || start != stem || !parts.emplace(std::stoull(name.substr(start.size())), path).second)
      fail<DataError>({"imagenet ", folder.native()}, "one .rec file, or parts like train_0.rec, train_1.rec",
                      {found[0].filename().native(), " and ", path.filename().native()},
                      "keep only the files of one set in a folder");
  }
  found.clear();
  for (const auto& [number, path] : parts) {
    if (number != found.size())
      fail<DataError>({"imagenet ", folder.native()}, {stem, found.size(), ".rec"}, path.filename().native(),
                      "a part is missing");
    found.push_back(path);
  }
  return found;
}

}  // namespace tutti::imagenet
