// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <tutti/io/file.hpp>
#include <tutti/io/json/json.hpp>

namespace tutti::report_tool {

// Reads evaluation.json in the form that the page shows, with at most `most_images` images. Throws DataError if it does
// not have the format of EvaluationFile.
[[nodiscard]] io::Json read_evaluation(const io::Path& path, std::size_t most_images);

}  // namespace tutti::report_tool
