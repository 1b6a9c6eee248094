// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/backends/make.hpp>

namespace tutti::trainer {

// Returns what --help says about --strategy: the strategies of this build, and the packages that add the others.
[[nodiscard]] const std::string& strategy_help();

}  // namespace tutti::trainer
