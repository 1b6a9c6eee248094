// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backends/make/backend_options.hpp>
#include <tutti/backends/make/separate.hpp>
#include <tutti/engine/backend.hpp>

namespace tutti {

// What this program was linked with, fastest first: "cuda", "onednn", "eigen", "reference".
[[nodiscard]] std::vector<std::string> built_backends();

// The backend that "auto" stands for here: that of a GPU if the build has it and a GPU will do, else the fastest on the
// processor. Calls options.warn if the host has a GPU that it does not take.
[[nodiscard]] std::string automatic_backend(const BackendOptions& options = {});
// A backend by name, or "auto". UsageError for one that was not linked.
[[nodiscard]] std::unique_ptr<Backend> make_backend(std::string_view word = "auto", const BackendOptions& options = {});

// The GPUs of this host; 0 for a program without their backend. DeviceError where it has one and there are none.
[[nodiscard]] int count_gpus();
// The GPU of a backend that computes in 16 bits as f16 only, as messages name it; else empty.
[[nodiscard]] std::string gpu_without_bf16(Backend& backend);

}  // namespace tutti

#if TUTTI_MAKE_DEFINITIONS
#include <tutti/backends/make/backend_definitions.hpp>
#endif
