// SPDX-License-Identifier: MIT
#pragma once

// CUDA's runtime and NVRTC played on the processor, for tests on machines without a GPU: a program that includes this
// is linked with emulator/*.cpp, which define those of their functions that the backend calls. Kernels are compiled by
// the C++ compiler, once a build folder, without contraction and with. They run block by block, their threads as fibres
// that change at __syncthreads(), in three orders, so that a missing barrier shows; shared memory holds what is no
// number when a block begins, and pages that nobody may touch lie around allocations. Nothing started on a stream
// happens before somebody waits for it, as late as a device may be; a copy into pageable memory waits. What CUDA
// refuses while a graph is captured is refused. What only a GPU can show (races within a warp, speed, the libraries'
// kernels) is not tested here.
#include "emulator/compile.hpp"
#include "emulator/device.hpp"
