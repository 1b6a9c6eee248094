// SPDX-License-Identifier: MIT
#pragma once

// Emulates CUDA's runtime and NVRTC on the processor, for tests on machines without a GPU. The build links a program
// that includes this header with emulator/*.cpp, which define the CUDA functions that the backend calls. The C++
// compiler compiles the kernels, without contraction and with it; a build folder keeps them. Kernels run block by
// block. Threads of a block are fibres that switch at __syncthreads(), in three orders, so that a missing barrier
// shows. Shared memory contains NaNs when a block begins, and inaccessible pages surround allocations.
// Work on a stream runs only when the host waits for it, which is the latest time at which a device may run it. A copy
// into pageable memory waits. The emulator refuses calls that CUDA refuses while a graph is captured. It cannot show
// races within a warp, speed, and the kernels of the libraries.
#include "emulator/compile.hpp"
#include "emulator/device.hpp"
