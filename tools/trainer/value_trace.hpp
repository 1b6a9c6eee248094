// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include <tutti/engine/value_trace.hpp>

namespace tutti::trainer {

// TUTTI_TRACE=1: ops run one after the other, and each says what it has come to. Null where nobody asks for it.
[[nodiscard]] std::unique_ptr<ValueTrace> traced_values();

}  // namespace tutti::trainer
