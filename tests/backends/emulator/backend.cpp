// SPDX-License-Identifier: MIT
// The part that all programs with the emulated backend compile only once.
#define TUTTI_CUDA_LINK_LIBRARIES
#define TUTTI_SOURCE_EMULATED
#include "backends/emulated_cuda.hpp"
