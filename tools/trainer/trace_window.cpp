// SPDX-License-Identifier: MIT
#include "tools/trainer/trace_window.hpp"

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <system_error>

#include <tutti/core/error.hpp>

namespace tutti::trainer {

TraceWindow trace_window(const RunOptions& o) {
  if (o.trace_steps.empty()) return {};
  const auto refuse = [&] { fail<UsageError>("--trace-steps", "FIRST:LAST, steps from 1", "'" + o.trace_steps + "'"); };
  TraceWindow w;
  const std::string_view text = o.trace_steps;
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) refuse();
  const auto read = [&](std::string_view part, std::int64_t& to) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), to);
    if (error != std::errc{} || end != part.data() + part.size() || part.empty()) refuse();
  };
  read(text.substr(0, colon), w.first);
  read(text.substr(colon + 1), w.last);
  if (w.first < 1 || w.last < w.first) refuse();
  return w;
}

}  // namespace tutti::trainer
