// SPDX-License-Identifier: MIT
#pragma once

#include <cudnn_graph.h>

#include <cstdint>
#include <string>

#include <tutti/backends/cuda/library.hpp>

// cuDNN's graph API, opened at its first use.
#if !defined(TUTTI_CUDA_LINK_LIBRARIES)
namespace tutti::cuda {

inline const Library& cudnn_library() {
  static const std::string major = std::to_string(CUDNN_MAJOR);
  static const Library library("libcudnn.so." + major,
                               "cuDNN " + major + " (package cudnn9-cuda, or pip's nvidia-cudnn)");
  return library;
}

}  // namespace tutti::cuda

TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, size_t, cudnnGetVersion, (), )
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, size_t, cudnnGetCudartVersion, (), )
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, const char*, cudnnGetErrorString, (cudnnStatus_t status), status)
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, void, cudnnGetLastErrorString, (char* message, size_t size), message,
                   size)
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, cudnnStatus_t, cudnnCreate, (cudnnHandle_t * handle), handle)
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, cudnnStatus_t, cudnnDestroy, (cudnnHandle_t handle), handle)
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, cudnnStatus_t, cudnnSetStream,
                   (cudnnHandle_t handle, cudaStream_t stream), handle, stream)
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, cudnnStatus_t, cudnnGetStream,
                   (cudnnHandle_t handle, cudaStream_t* stream), handle, stream)
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, cudnnStatus_t, cudnnBackendCreateDescriptor,
                   (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor), type, descriptor)
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, cudnnStatus_t, cudnnBackendDestroyDescriptor,
                   (cudnnBackendDescriptor_t descriptor), descriptor)
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, cudnnStatus_t, cudnnBackendFinalize,
                   (cudnnBackendDescriptor_t descriptor), descriptor)
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, cudnnStatus_t, cudnnBackendSetAttribute,
                   (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                    cudnnBackendAttributeType_t type, std::int64_t count, const void* elements),
                   descriptor, name, type, count, elements)
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, cudnnStatus_t, cudnnBackendGetAttribute,
                   (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                    cudnnBackendAttributeType_t type, std::int64_t requested, std::int64_t* count, void* elements),
                   descriptor, name, type, requested, count, elements)
TUTTI_CUDA_FORWARD(tutti::cuda::cudnn_library, cudnnStatus_t, cudnnBackendExecute,
                   (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack), handle, plan,
                   pack)
#endif

namespace tutti::cuda {
// Returns the version of cuDNN as a number, which it opens; "none" if it is missing.
inline std::string cudnn_version() {
#if !defined(TUTTI_CUDA_LINK_LIBRARIES)
  if (!cudnn_library().found()) return "none";
#endif
  return std::to_string(cudnnGetVersion());
}
}  // namespace tutti::cuda
