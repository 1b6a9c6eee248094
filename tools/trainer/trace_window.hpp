// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "tools/trainer/options.hpp"

namespace tutti::trainer {

// The first and the last step of --trace-steps, or 0 and 0 if it is not given. trace_window() throws UsageError if the
// option is not a window.
struct TraceWindow {
  std::int64_t first = 0, last = 0;
};

[[nodiscard]] TraceWindow trace_window(const RunOptions& o);

}  // namespace tutti::trainer
