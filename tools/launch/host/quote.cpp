// SPDX-License-Identifier: MIT
#include "tools/launch/host/quote.hpp"

#include <string>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::launch {

std::string shell_quoted(std::string_view word) {
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
