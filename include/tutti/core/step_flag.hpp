// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

// Flags that every rank sends in each step. All ranks get the union and make the same decision.
namespace tutti::step_flag {

inline constexpr std::uint32_t stop = 1, membership = 2, not_finite = 4, save = 8;

}  // namespace tutti::step_flag
