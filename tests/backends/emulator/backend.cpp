// SPDX-License-Identifier: MIT
// Code that all programs with the emulated backend share, so that it is compiled only once.
#define TUTTI_CUDA_LINK_LIBRARIES
#define TUTTI_SOURCE_EMULATED
#include "backends/emulated_cuda.hpp"
