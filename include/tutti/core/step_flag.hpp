// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

// What every rank says in each step; all ranks see the union and decide the same.
namespace tutti::step_flag {

inline constexpr std::uint32_t stop = 1, membership = 2, not_finite = 4, save = 8;

}  // namespace tutti::step_flag
