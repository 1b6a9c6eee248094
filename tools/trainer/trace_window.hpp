// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "tools/trainer/options.hpp"

namespace tutti::trainer {

// What --trace-steps says: the first and the last step; both 0 where it says nothing. UsageError for what is no window.
struct TraceWindow {
  std::int64_t first = 0, last = 0;
};

[[nodiscard]] TraceWindow trace_window(const RunOptions& o);

}  // namespace tutti::trainer
