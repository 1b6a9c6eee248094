// SPDX-License-Identifier: MIT
#include "tools/trainer/value_trace.hpp"

#include <cstdlib>
#include <memory>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::trainer {

std::unique_ptr<ValueTrace> traced_values() {
  const char* const value = std::getenv("TUTTI_TRACE");
  const std::string_view said = value == nullptr ? "" : value;
  if (said.empty() || said == "0") return nullptr;
  if (said != "1")
    fail<UsageError>("environment TUTTI_TRACE", "1, which prints the result of each op", "'" + printable(said) + "'",
                     "use the option --trace FILE for a timeline");
  return std::make_unique<ValueTrace>();
}

}  // namespace tutti::trainer
