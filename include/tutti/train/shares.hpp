// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace tutti {

// How a job with logical ranks divides them among its processes. The results are the same bits.
enum class Shares : std::uint8_t {
  equal,    // each process has the same number, or one more
  measured  // they follow the time that each process needs for one, so that all finish a step together
};

}  // namespace tutti
