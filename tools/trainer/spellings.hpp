// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>
#include <vector>

#include "tools/trainer/options.hpp"

// The names that options of the training programs have in the scripts of other trainers.
namespace tutti::trainer {

// The further names of an option of this program, without their dashes. Example: momentum for mom.
[[nodiscard]] std::vector<std::string_view> spellings_of(Program program, std::string_view option);

// Whether --help lists the option. --help-all lists every option.
[[nodiscard]] bool is_common(std::string_view option);

}  // namespace tutti::trainer
