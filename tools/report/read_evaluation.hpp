// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <tutti/io/file.hpp>
#include <tutti/io/json/json.hpp>

namespace tutti::report_tool {

// evaluation.json as the page shows it, with so many images at most. Throws DataError where it is not as EvaluationFile
// writes it.
[[nodiscard]] io::Json read_evaluation(const io::Path& path, std::size_t most_images);

}  // namespace tutti::report_tool
