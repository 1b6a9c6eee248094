// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <string>

#include <tutti/backends/cuda/library.hpp>

// NCCL, which is opened when it is first used.
#if !defined(TUTTI_CUDA_LINK_LIBRARIES)
namespace tutti {

inline const cuda::Library& nccl_library() {
  static const cuda::Library library("libnccl.so.2", "NCCL (package libnccl2, or pip's nvidia-nccl)");
  return library;
}

}  // namespace tutti

TUTTI_CUDA_FORWARD(tutti::nccl_library, ncclResult_t, ncclGetVersion, (int* version), version)
TUTTI_CUDA_FORWARD(tutti::nccl_library, ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id), id)
TUTTI_CUDA_FORWARD(tutti::nccl_library, ncclResult_t, ncclCommInitRankConfig,
                   (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config), comm, ranks, id,
                   rank, config)
TUTTI_CUDA_FORWARD(tutti::nccl_library, ncclResult_t, ncclCommFinalize, (ncclComm_t comm), comm)
TUTTI_CUDA_FORWARD(tutti::nccl_library, ncclResult_t, ncclCommDestroy, (ncclComm_t comm), comm)
TUTTI_CUDA_FORWARD(tutti::nccl_library, ncclResult_t, ncclCommAbort, (ncclComm_t comm), comm)
TUTTI_CUDA_FORWARD(tutti::nccl_library, ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* error),
                   comm, error)
TUTTI_CUDA_FORWARD(tutti::nccl_library, const char*, ncclGetErrorString, (ncclResult_t result), result)
TUTTI_CUDA_FORWARD(tutti::nccl_library, const char*, ncclGetLastError, (ncclComm_t comm), comm)
TUTTI_CUDA_FORWARD(tutti::nccl_library, ncclResult_t, ncclAllReduce,
                   (const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                    cudaStream_t stream),
                   from, to, count, type, op, comm, stream)
TUTTI_CUDA_FORWARD(tutti::nccl_library, ncclResult_t, ncclBroadcast,
                   (const void* from, void* to, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                    cudaStream_t stream),
                   from, to, count, type, root, comm, stream)
TUTTI_CUDA_FORWARD(tutti::nccl_library, ncclResult_t, ncclAllGather,
                   (const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                    cudaStream_t stream),
                   from, to, count, type, comm, stream)
#endif
