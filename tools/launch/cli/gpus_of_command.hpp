// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tutti::launch::detail {

// How many GPUs the last --gpus among the command's arguments names, as `seq -s , 0 7` prints them; nothing where it is
// empty, left out by the shell so that another option follows, or no list: then the program has to say so.
[[nodiscard]] std::optional<int> gpus_of_command(const std::vector<std::string>& command);

}  // namespace tutti::launch::detail
