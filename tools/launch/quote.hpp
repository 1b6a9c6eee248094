// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::launch {

// A word that any Bourne shell, and csh, reads as exactly these bytes. UsageError for control characters, which not
// every shell keeps inside quotes, and for '!' beside them there is no danger: a shell that is not interactive has no
// history.
[[nodiscard]] inline std::string shell_quoted(std::string_view word) {
  std::string out = "'";
  for (const char c : word) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      fail<UsageError>("remote command", "no control characters", "'" + printable(word) + "'");
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  return out + "'";
}

}  // namespace tutti::launch
