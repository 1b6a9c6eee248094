// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "tools/command_line/command_line.hpp"
#include "tools/launch/cli/options.hpp"

namespace tutti::launch::detail {

// Returns the options of tutti-launch, which set the fields of `o`.
[[nodiscard]] std::vector<command_line::Option> option_table(Options& o);

// Returns the rest of tutti-launch's help: title, usage and notes.
[[nodiscard]] command_line::Form form();

}  // namespace tutti::launch::detail
