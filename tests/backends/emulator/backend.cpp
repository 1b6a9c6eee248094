// SPDX-License-Identifier: MIT
// What all programs with the emulated backend compile once.
#define TUTTI_CUDA_LINK_LIBRARIES
#define TUTTI_SOURCE_EMULATED
#include "backends/emulated_cuda.hpp"
