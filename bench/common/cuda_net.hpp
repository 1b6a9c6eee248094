// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "net.hpp"

namespace tutti::bench {

// Returns the name of the GPU for nets, or an empty text without a GPU or in a build without CUDA.
[[nodiscard]] std::string gpu_name();

// Builds the net on the GPU. The seconds of a node are the time between the events around its kernels, which for a
// short op includes the start of its first kernel. Throws UsageError if the build has no CUDA.
[[nodiscard]] std::unique_ptr<Net> make_cuda_net(const Graph& model, DType precision, std::int64_t rows);

}  // namespace tutti::bench
