// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>

// Helpers for readers of data sets to find their files.
namespace tutti {

// Returns whether it is a regular file or a link to one.
[[nodiscard]] inline bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// Returns the length of a file in bytes. Throws DataError if it cannot be determined.
[[nodiscard]] inline std::uintmax_t size_of_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) fail<DataError>("data", {"the size of ", path.native()}, error.message());
  return bytes;
}

// Returns a description of what is at `folder`, for an error message. Lists at most eight entries.
[[nodiscard]] inline std::string contents_of(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto status = fs::status(folder, error);
  if (!fs::exists(status)) return "no folder " + folder.string();
  if (!fs::is_directory(status)) return folder.string() + ", which is not a folder";
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) return "folder " + folder.string() + ", which cannot be read (" + error.message() + ")";
  if (names.empty()) return "the empty folder " + folder.string();
  std::sort(names.begin(), names.end());
  std::string text = "folder " + folder.string() + " with ";
  constexpr std::size_t most = 8;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

}  // namespace tutti
