// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/io/cache_folder.hpp>
#include <tutti/io/crc32c.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>

namespace tutti::io {

// Stores texts by key, one file for each, for results that take time to compute. A file that is damaged or belongs to
// another key counts as missing. If the folder is not writable, results are computed again in each run, without an
// error. Several processes may share a folder.
class TextStore {
 public:
  // first_line: what the files contain, with the version of their format. ending: the end of the file names. If
  // `folder` is empty, no text is stored.
  TextStore(std::filesystem::path folder, std::string first_line, std::string ending)
      : folder_(std::move(folder)), first_line_(std::move(first_line)), ending_(std::move(ending)) {}

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  [[nodiscard]] std::filesystem::path file_of(std::string_view key) const {
    return folder_ / (hash_name(key) + ending_);
  }
  // Returns whether the file of `key` exists, valid or not.
  [[nodiscard]] bool has_file(std::string_view key) const noexcept {
    std::error_code error;
    return !folder_.empty() && std::filesystem::exists(file_of(key), error);
  }

  [[nodiscard]] std::optional<std::string> load(std::string_view key) const {
    if (folder_.empty()) return {};
    try {
      std::string text = read_text_file(file_of(key), largest_file);
      const std::string head = header(key);
      if (!text.starts_with(head)) return {};
      const std::size_t end = text.find('\n', head.size());
      if (end == std::string::npos) return {};
      std::uint32_t crc = 0;
      const auto [stop, error] = std::from_chars(text.data() + head.size(), text.data() + end, crc);
      if (error != std::errc{} || stop != text.data() + end) return {};
      text.erase(0, end + 1);
      if (text.empty() || crc32c(text) != crc) return {};
      return text;
    } catch (const Error&) {
      return {};
    }
  }
  // Returns whether the text was stored.
  bool save(std::string_view key, std::string_view text) const noexcept {
    if (folder_.empty() || text.empty() || text.size() > largest_file / 2) return false;
    try {
      make_directories(folder_);
      atomic_write_file(file_of(key), header(key) + std::to_string(crc32c(text)) + "\n" + std::string(text));
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }
  void forget(std::string_view key) const noexcept {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove(file_of(key), ignored);
  }

 private:
  static constexpr std::size_t largest_file = std::size_t{64} << 20;
  [[nodiscard]] std::string header(std::string_view key) const {
    std::string h = first_line_ + "\n";
    for (const char c : key) h += c == '\n' ? ' ' : c;
    return h + "\n";
  }

  std::filesystem::path folder_;
  std::string first_line_, ending_;
};

}  // namespace tutti::io
