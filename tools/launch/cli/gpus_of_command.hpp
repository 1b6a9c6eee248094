// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tutti::launch::detail {

// Returns the number of GPUs that the last --gpus among the command's arguments lists, as `seq -s , 0 7` prints them.
// Returns nullopt if the list is missing, empty or not a list. The program itself reports the error then.
[[nodiscard]] std::optional<int> gpus_of_command(const std::vector<std::string>& command);

}  // namespace tutti::launch::detail
