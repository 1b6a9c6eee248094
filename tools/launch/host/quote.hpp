// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace tutti::launch {

// A word that any Bourne shell, and csh, reads as exactly these bytes. UsageError for control characters, which not
// every shell keeps inside quotes, and for '!' beside them there is no danger: a shell that is not interactive has no
// history.
[[nodiscard]] std::string shell_quoted(std::string_view word);

}  // namespace tutti::launch
