// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace tutti {

// How a job divides each step among its processes.
enum class Shares : std::uint8_t {
  equal,     // each process has the same number of logical ranks or rows, or one more
  measured,  // the numbers of logical ranks follow the time that each process needs for one, so that all finish a step
             // together. The results are the same bits
  rows       // without logical ranks: the numbers of rows follow the time that each process needs for one. The gradient
             // is the mean over all rows, but batch norm sees the rows of one process, so the bits depend on the shares
};

}  // namespace tutti
