// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include <tutti/comm/windows/process_windows.hpp>

namespace tutti::testing {

inline bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}
inline std::shared_ptr<HostWindow> made(ProcessWindows& of, std::size_t bytes) {
  std::string why;
  auto w = of.make(bytes, why);
  REQUIRE_MESSAGE(w != nullptr, why);
  return w;
}

}  // namespace tutti::testing
