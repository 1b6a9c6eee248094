// SPDX-License-Identifier: MIT
#pragma once

namespace tutti {

// A rectangle of whole pixels.
struct ImageBox {
  int top = 0, left = 0, height = 0, width = 0;
  friend bool operator==(const ImageBox&, const ImageBox&) = default;
};

}  // namespace tutti
