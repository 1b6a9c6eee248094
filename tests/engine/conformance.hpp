// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "engine/comparison.hpp"

namespace tutti::testing {

// Trains one step and evaluates one batch on a model. Compares the result of every node, in training and in evaluation,
// with the result of the reference loops in f64 on the same inputs (suite/node_checker.hpp).
Comparison check_model(Backend& backend, const Graph& model, std::int64_t rows, DType precision,
                       std::uint64_t seed = 1);

}  // namespace tutti::testing
