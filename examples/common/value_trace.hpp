// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/engine/value_trace.hpp>

namespace tutti::examples {

// TUTTI_TRACE=1: ops run one after the other, and each says what it has come to. Null where nobody asks for it.
[[nodiscard]] inline std::unique_ptr<ValueTrace> traced_values() {
  const char* const value = std::getenv("TUTTI_TRACE");
  const std::string_view said = value == nullptr ? "" : value;
  if (said.empty() || said == "0") return nullptr;
  if (said != "1")
    fail<UsageError>("environment TUTTI_TRACE", "1, which prints what each op computes", "'" + printable(said) + "'",
                     "a timeline is an option: --trace FILE");
  return std::make_unique<ValueTrace>();
}

}  // namespace tutti::examples
