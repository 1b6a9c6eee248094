// SPDX-License-Identifier: MIT
#pragma once

// Emulates CUDA's runtime and NVRTC on the processor, for tests on machines without a GPU. A program that includes this
// is linked with emulator/*.cpp, which define the functions that the backend calls.
// The C++ compiler compiles the kernels, once for each build folder, without contraction and with it. They run block by
// block. Their threads are fibres that switch at __syncthreads(), in three orders, so that a missing barrier shows.
// Shared memory contains NaNs when a block begins, and allocations are surrounded by inaccessible pages.
// Work on a stream runs only when the host waits for it, as late as a device may run it; a copy into pageable memory
// waits. Calls that CUDA refuses while a graph is captured are refused. Properties that only a GPU can show (races
// within a warp, speed, the libraries' kernels) are not tested here.
#include "emulator/compile.hpp"
#include "emulator/device.hpp"
