// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/backends/make/backend.hpp>

#include "tools/trainer/options.hpp"
#include "tools/trainer/scripted.hpp"

// The backend of a training program's process.
namespace tutti::trainer {

[[nodiscard]] BackendOptions backend_options(const RunOptions& o);

// Returns whether this build contains the backend.
[[nodiscard]] bool is_built(const std::string& backend);

// Returns the GPU of this process: each rank of a host has its own GPU.
[[nodiscard]] int gpu_of(const RunOptions& o, const Started& start);

// Returns whether --backend auto uses the GPU of this process.
[[nodiscard]] bool has_gpu(const RunOptions& o, const Started& start);

}  // namespace tutti::trainer
