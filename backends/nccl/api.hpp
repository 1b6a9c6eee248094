// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <string>

#include <tutti/backends/cuda/library.hpp>

namespace tutti {

// The functions of NCCL 2.19 and newer for memory from which NCCL's kernels read directly, null in an older NCCL.
struct NcclRegistration {
  ncclResult_t (*allocate)(void**, std::size_t) = nullptr;                  // ncclMemAlloc
  ncclResult_t (*release)(void*) = nullptr;                                 // ncclMemFree
  ncclResult_t (*enter)(ncclComm_t, void*, std::size_t, void**) = nullptr;  // ncclCommRegister
  ncclResult_t (*leave)(ncclComm_t, void*) = nullptr;                       // ncclCommDeregister
  [[nodiscard]] bool complete() const noexcept {
    return allocate != nullptr && release != nullptr && enter != nullptr && leave != nullptr;
  }
};

}  // namespace tutti

// NCCL, which is opened when it is first used.
#if !defined(TUTTI_CUDA_LINK_LIBRARIES)
namespace tutti {

inline const cuda::Library& nccl_library() {
  static const cuda::Library library("libnccl.so.2", "NCCL (package libnccl2, or pip's nvidia-nccl)");
  return library;
}
[[nodiscard]] inline NcclRegistration nccl_registration() {
  const cuda::Library& l = nccl_library();
  return {l.find<ncclResult_t(void**, std::size_t)>("ncclMemAlloc"), l.find<ncclResult_t(void*)>("ncclMemFree"),
          l.find<ncclResult_t(ncclComm_t, void*, std::size_t, void**)>("ncclCommRegister"),
          l.find<ncclResult_t(ncclComm_t, void*)>("ncclCommDeregister")};
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
#else
namespace tutti {

[[nodiscard]] inline NcclRegistration nccl_registration() {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  return {ncclMemAlloc, ncclMemFree, ncclCommRegister, ncclCommDeregister};
#else
  return {};
#endif
}

}  // namespace tutti
#endif
