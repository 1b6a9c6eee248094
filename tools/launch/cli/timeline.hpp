// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace tutti::launch {

// Merges the timelines of a job if its processes were killed before they could do it. Returns a message, or an empty
// text if they were merged already.
[[nodiscard]] std::string merge_timelines(const std::vector<std::string>& command, const std::string& job);

}  // namespace tutti::launch
