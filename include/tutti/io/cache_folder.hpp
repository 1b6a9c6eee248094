// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace tutti::io {

// Returns $XDG_CACHE_HOME/tutti/NAME, or $HOME/.cache/tutti/NAME if the first variable is not set. Without a NAME,
// returns the folder that contains all of them. Returns an empty path if neither variable is an absolute path.
[[nodiscard]] inline std::filesystem::path cache_folder(std::string_view name = {}) {
  const auto folder = [&](const char* variable, std::string_view rest) {
    const char* const value = std::getenv(variable);
    if (value == nullptr || *value != '/') return std::filesystem::path();
    const std::filesystem::path all = std::filesystem::path(value) / rest;
    return name.empty() ? all : all / name;
  };
  const std::filesystem::path cache = folder("XDG_CACHE_HOME", "tutti");
  return cache.empty() ? folder("HOME", ".cache/tutti") : cache;
}

// Returns 16 hexadecimal digits that represent a text in a file name. They are the same on every machine.
[[nodiscard]] inline std::string hash_name(std::string_view text) {
  std::uint64_t h = 14695981039346656037ULL;  // FNV-1a
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  std::string name(16, '0');
  for (std::size_t i = 0; i < name.size(); ++i) name[i] = "0123456789abcdef"[h >> (60 - 4 * i) & 15U];
  return name;
}

}  // namespace tutti::io
