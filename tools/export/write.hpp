// SPDX-License-Identifier: MIT
#pragma once

#include "tools/export/options.hpp"

namespace tutti::export_tool {

// Writes the ONNX file and prints a line about it. Returns the exit code.
[[nodiscard]] int write(const Options& o);

}  // namespace tutti::export_tool
