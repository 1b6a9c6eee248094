// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace tutti::cuda {

// $XDG_CACHE_HOME/tutti/NAME, else $HOME/.cache/tutti/NAME; empty where neither variable names a place.
[[nodiscard]] inline std::filesystem::path cache_folder(std::string_view name) {
  const auto folder = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return std::filesystem::path(value != nullptr && *value == '/' ? value : "");
  };
  if (const auto cache = folder("XDG_CACHE_HOME"); !cache.empty()) return cache / "tutti" / name;
  if (const auto home = folder("HOME"); !home.empty()) return home / ".cache" / "tutti" / name;
  return {};
}

}  // namespace tutti::cuda
