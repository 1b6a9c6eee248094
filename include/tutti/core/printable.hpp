// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace tutti {

// Returns foreign text in a form that is safe inside a message: control characters and non-ASCII bytes as \xNN, at most
// 80 bytes.
[[nodiscard]] inline std::string printable(std::string_view text) {
  constexpr char hex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, 80)) {
    const auto u = static_cast<unsigned char>(c);
    if (u >= 0x20 && u < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += hex[u >> 4];
      out += hex[u & 15U];
    }
  }
  return text.size() > 80 ? out + "..." : out;
}

}  // namespace tutti
