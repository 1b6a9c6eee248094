// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace tutti {

// The label of an image that mixup or cutmix made from two: the part `share` of it has the class `first`, and the rest
// `second`. Rows of labels in this form are three numbers of 32 bits, [N, 3], instead of [N].
struct MixedLabel {
  std::int32_t first = 0, second = 0;
  float share = 1;
};
static_assert(sizeof(MixedLabel) == 3 * sizeof(std::int32_t));

}  // namespace tutti
