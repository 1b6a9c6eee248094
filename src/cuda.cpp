// SPDX-License-Identifier: MIT
// Compiles the kernels of this backend once per program. See <tutti/core/separate.hpp>.
#define TUTTI_SOURCE_CUDA
#include <tutti/backends/cuda/cuda.hpp>
