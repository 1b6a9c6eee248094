// SPDX-License-Identifier: MIT
// What separate compilation compiles once a program: this backend's kernels. See <tutti/core/separate.hpp>.
#define TUTTI_SOURCE_CUDA
#include <tutti/backends/cuda/cuda.hpp>
