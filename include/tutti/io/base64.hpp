// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tutti::io {

namespace detail {
inline constexpr std::string_view base64_digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
}  // namespace detail

// Returns the bytes in base64 (RFC 4648), with padding.
[[nodiscard]] inline std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t three = 0;
    for (std::size_t i = 0; i < 3; ++i)
      three = three << 8U | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    for (std::size_t i = 0; i < 4; ++i)
      text += at + i <= bytes.size() ? detail::base64_digits[three >> (18 - 6 * i) & 63U] : '=';
  }
  return text;
}
// Returns the bytes, or no value if the text is not base64.
[[nodiscard]] inline std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return {};
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::uint32_t three = 0;
    std::size_t padding = 0;
    for (const char c : text.substr(at, 4)) {
      const std::size_t digit = detail::base64_digits.find(c);
      const bool pad = c == '=' && at + 4 == text.size();
      if (digit == std::string_view::npos ? !pad : padding > 0) return {};
      padding += pad ? 1 : 0;
      three = three << 6U | static_cast<std::uint32_t>(pad ? 0 : digit);
    }
    if (padding > 2) return {};
    for (std::size_t i = 0; i + padding < 3; ++i) bytes += static_cast<char>(three >> (16 - 8 * i) & 255U);
  }
  return bytes;
}

}  // namespace tutti::io
