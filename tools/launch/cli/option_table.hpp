// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "tools/command_line/command_line.hpp"
#include "tools/launch/cli/options.hpp"

namespace tutti::launch::detail {

// Returns the options of tutti-launch, which set the fields of `o`.
[[nodiscard]] std::vector<command_line::Option> option_table(Options& o);

// Returns the other texts of its help.
[[nodiscard]] command_line::Form form();

}  // namespace tutti::launch::detail
