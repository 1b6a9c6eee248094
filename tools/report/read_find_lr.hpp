// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/io/file.hpp>
#include <tutti/io/json/json.hpp>

namespace tutti::report_tool {

// Reads find_lr.json, the losses at rising rates that a training with --find-lr writes. Returns the points whose three
// numbers are finite, as columns, and the suggested rate. Throws DataError.
[[nodiscard]] io::Json read_find_lr(const io::Path& path);

}  // namespace tutti::report_tool
