// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/report/run_data.hpp"

namespace tutti::report_tool {

// What is readable of a run, with so many of its worst-classified images at most; RunData::problems names the rest.
// Throws DataError for what is no run.
[[nodiscard]] RunData read_run(const std::string& named, std::size_t most_images);

// Gives runs of the same folder name longer ones.
void tell_apart(std::vector<RunData>& runs);

}  // namespace tutti::report_tool
