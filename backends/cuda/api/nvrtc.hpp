// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include <string>

#include <tutti/backends/cuda/library.hpp>

// NVRTC, opened at its first use.
#if defined(TUTTI_CUDA_LINK_LIBRARIES)
namespace tutti::cuda {
inline void open_nvrtc() {}
}  // namespace tutti::cuda
#else
namespace tutti::cuda {

inline const Library& nvrtc_library() {
  static const std::string major = std::to_string(cuda_major);
  // NVRTC opens its builtins by their bare name and has no search path of its own.
  static const Library library(
      "libnvrtc.so." + major,
      "CUDA " + major + "'s NVRTC (package cuda-nvrtc-" + major + "-x, or pip's nvidia-cuda-nvrtc)",
      "libnvrtc-builtins.so.");
  return library;
}
// Opens NVRTC if it exists. Other libraries that open and close it then find it open, which costs little.
inline void open_nvrtc() { (void)nvrtc_library().found(); }

}  // namespace tutti::cuda

TUTTI_CUDA_FORWARD(tutti::cuda::nvrtc_library, const char*, nvrtcGetErrorString, (nvrtcResult result), result)
TUTTI_CUDA_FORWARD(tutti::cuda::nvrtc_library, nvrtcResult, nvrtcCreateProgram,
                   (nvrtcProgram * program, const char* source, const char* name, int headers, const char* const* texts,
                    const char* const* names),
                   program, source, name, headers, texts, names)
TUTTI_CUDA_FORWARD(tutti::cuda::nvrtc_library, nvrtcResult, nvrtcDestroyProgram, (nvrtcProgram * program), program)
TUTTI_CUDA_FORWARD(tutti::cuda::nvrtc_library, nvrtcResult, nvrtcCompileProgram,
                   (nvrtcProgram program, int count, const char* const* options), program, count, options)
TUTTI_CUDA_FORWARD(tutti::cuda::nvrtc_library, nvrtcResult, nvrtcAddNameExpression,
                   (nvrtcProgram program, const char* name), program, name)
TUTTI_CUDA_FORWARD(tutti::cuda::nvrtc_library, nvrtcResult, nvrtcGetLoweredName,
                   (nvrtcProgram program, const char* name, const char** lowered), program, name, lowered)
TUTTI_CUDA_FORWARD(tutti::cuda::nvrtc_library, nvrtcResult, nvrtcGetCUBINSize, (nvrtcProgram program, size_t* size),
                   program, size)
TUTTI_CUDA_FORWARD(tutti::cuda::nvrtc_library, nvrtcResult, nvrtcGetCUBIN, (nvrtcProgram program, char* cubin), program,
                   cubin)
TUTTI_CUDA_FORWARD(tutti::cuda::nvrtc_library, nvrtcResult, nvrtcGetProgramLogSize,
                   (nvrtcProgram program, size_t* size), program, size)
TUTTI_CUDA_FORWARD(tutti::cuda::nvrtc_library, nvrtcResult, nvrtcGetProgramLog, (nvrtcProgram program, char* log),
                   program, log)
#endif
