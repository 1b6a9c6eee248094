// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>
#include <vector>

// Additional names of options, which the scripts of other trainers and launchers use.
namespace tutti::command_line {

// Returns the additional names of an option of this program, without dashes. Example: momentum for mom of
// train_cifar10.
[[nodiscard]] std::vector<std::string_view> spellings_of(std::string_view program, std::string_view option);

}  // namespace tutti::command_line
