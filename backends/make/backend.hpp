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

// Returns the backends with which this program was linked, the fastest first: "cuda", "onednn", "eigen", "reference".
[[nodiscard]] std::vector<std::string> built_backends();

// Returns the backend that "auto" selects on this host: "cuda" if the program has it and a GPU is usable, otherwise the
// fastest one for the CPU. Calls options.warn if the host has a GPU that is not used.
[[nodiscard]] std::string automatic_backend(const BackendOptions& options = {});
// Returns a backend by its name or by "auto". Throws UsageError if it was not linked.
[[nodiscard]] std::unique_ptr<Backend> make_backend(std::string_view word = "auto", const BackendOptions& options = {});

// Returns the number of GPUs of this host, or 0 if the program has no GPU backend. Throws DeviceError if the program
// has a GPU backend and the host has no GPU.
[[nodiscard]] int count_gpus();
// Returns the name of the backend's GPU, for messages, if f16 is its only 16-bit type. Otherwise returns an empty text.
[[nodiscard]] std::string gpu_without_bf16(Backend& backend);

}  // namespace tutti

#if TUTTI_MAKE_DEFINITIONS
#include <tutti/backends/make/backend_definitions.hpp>
#endif
