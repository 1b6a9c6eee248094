// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/backends/make/backend.hpp>

#include "tools/trainer/options.hpp"
#include "tools/trainer/scripted.hpp"

// The backend of a training program's process.
namespace tutti::trainer {

[[nodiscard]] BackendOptions backend_options(const RunOptions& o);

// Whether this build contains the backend.
[[nodiscard]] bool is_built(const std::string& backend);

// The GPU of this process: the ranks of a host have one each.
[[nodiscard]] int gpu_of(const RunOptions& o, const Started& start);

// Whether --backend auto takes the GPU of this process.
[[nodiscard]] bool has_gpu(const RunOptions& o, const Started& start);

}  // namespace tutti::trainer
