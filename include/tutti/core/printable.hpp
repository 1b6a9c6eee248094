// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace tutti {

// Returns text from outside the program in a form that is safe in a message: control characters and non-ASCII bytes as
// \xNN, and at most 80 bytes of the text.
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
