// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/backends/make.hpp>

namespace tutti::trainer {

// What --help says of --strategy: the words of this build, and what a build needs for the others.
[[nodiscard]] const std::string& strategy_help();

}  // namespace tutti::trainer
