// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/report/run_data.hpp"

namespace tutti::report_tool {

// Reads the readable files of a run, with at most `most_images` of its worst-classified images. RunData::problems lists
// the other files. Throws DataError if the folder is not a run's folder.
[[nodiscard]] RunData read_run(const std::string& named, std::size_t most_images);

// If runs have the same folder name, makes their names longer until they differ.
void tell_apart(std::vector<RunData>& runs);

}  // namespace tutti::report_tool
