// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "tools/trainer/options.hpp"

namespace tutti::trainer {

// Sets the defaults of a preset.
void apply_preset(RunOptions& o, const std::string& name);

}  // namespace tutti::trainer
