// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace tutti {

// The label of a sample that could not be read. It is not a class: such a row does not change loss, gradient or hits.
inline constexpr std::int32_t ignored_label = -1;

}  // namespace tutti
