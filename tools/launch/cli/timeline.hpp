// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace tutti::launch {

// Where all processes of a job were killed, nobody has put their timelines together yet. What to say of it; empty:
// nothing was left to be done.
[[nodiscard]] std::string merge_timelines(const std::vector<std::string>& command, const std::string& job);

}  // namespace tutti::launch
