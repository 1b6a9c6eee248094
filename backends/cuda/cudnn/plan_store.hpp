// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/backends/cuda/cache_folder.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/crc32c.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>

namespace tutti::cuda {

// Where plans are kept.
[[nodiscard]] inline std::filesystem::path default_plan_folder() { return cache_folder("cudnn"); }

// Texts under keys, one file each: execution plans that were chosen once. A file that is damaged, or of another key, is
// as good as none, and a folder that cannot be written costs time, not the run. Several processes may share a folder.
class PlanStore {
 public:
  // An empty folder keeps nothing.
  explicit PlanStore(std::filesystem::path folder = default_plan_folder()) : folder_(std::move(folder)) {}

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  // The file of a key: its place in the folder does not depend on the machine.
  [[nodiscard]] std::filesystem::path file_of(std::string_view key) const {
    std::uint64_t h = 14695981039346656037ULL;  // FNV-1a
    for (const char c : key) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    std::array<char, 17> hex{};
    for (std::size_t i = 0; i < 16; ++i) hex[i] = "0123456789abcdef"[h >> (60 - 4 * i) & 15U];
    return folder_ / (std::string(hex.data(), 16) + ".plan");
  }

  [[nodiscard]] std::optional<std::string> load(std::string_view key) const {
    if (folder_.empty()) return {};
    try {
      std::string text = io::read_text_file(file_of(key), largest_file);
      const std::string head = header(key);
      if (!text.starts_with(head)) return {};
      const std::size_t end = text.find('\n', head.size());
      if (end == std::string::npos) return {};
      std::uint32_t crc = 0;
      const auto [stop, error] = std::from_chars(text.data() + head.size(), text.data() + end, crc);
      if (error != std::errc{} || stop != text.data() + end) return {};
      text.erase(0, end + 1);
      if (text.empty() || io::crc32c(text) != crc) return {};
      return text;
    } catch (const Error&) {
      return {};
    }
  }
  // Whether it was kept.
  bool save(std::string_view key, std::string_view text) const noexcept {
    if (folder_.empty() || text.empty() || text.size() > largest_file / 2) return false;
    try {
      io::make_directories(folder_);
      io::atomic_write_file(file_of(key), header(key) + std::to_string(io::crc32c(text)) + "\n" + std::string(text));
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
  [[nodiscard]] static std::string header(std::string_view key) {
    std::string h = "tutti cudnn plan 1\n";
    for (const char c : key) h += c == '\n' ? ' ' : c;
    return h + "\n";
  }

  std::filesystem::path folder_;
};

}  // namespace tutti::cuda
