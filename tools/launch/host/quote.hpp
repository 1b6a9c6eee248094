// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace tutti::launch {

// Returns a word that any Bourne shell, and csh, reads as exactly these bytes. Throws UsageError for control
// characters, which some shells change inside quotes. '!' is safe: a shell that is not interactive has no history.
[[nodiscard]] std::string shell_quoted(std::string_view word);

}  // namespace tutti::launch
