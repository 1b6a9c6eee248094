// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include <tutti/engine/value_trace.hpp>

namespace tutti::trainer {

// With TUTTI_TRACE=1, ops run one after the other and each op prints its result. Returns null without the variable.
[[nodiscard]] std::unique_ptr<ValueTrace> traced_values();

}  // namespace tutti::trainer
