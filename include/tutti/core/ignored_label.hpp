// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace tutti {

// Stands for no class: the label of a sample that could not be read. Such a row adds nothing to loss, gradient or hits.
inline constexpr std::int32_t ignored_label = -1;

}  // namespace tutti
