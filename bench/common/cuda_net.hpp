// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "net.hpp"

namespace tutti::bench {

// The GPU that nets run on; empty where there is none, or a build without CUDA.
[[nodiscard]] std::string gpu_name();

// A net on it. A node's seconds are those between two events around its kernels: a short op counts the start of its
// first kernel too. UsageError in a build without CUDA.
[[nodiscard]] std::unique_ptr<Net> make_cuda_net(const Graph& model, DType precision, std::int64_t rows);

}  // namespace tutti::bench
