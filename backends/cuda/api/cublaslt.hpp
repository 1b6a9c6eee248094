// SPDX-License-Identifier: MIT
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include <tutti/backends/cuda/library.hpp>

// cuBLASLt, opened at its first use.
#if defined(TUTTI_CUDA_LINK_LIBRARIES)
namespace tutti::cuda {
inline void open_cublaslt() {}
}  // namespace tutti::cuda
#else
namespace tutti::cuda {

inline const Library& cublaslt_library() {
  static const std::string major = std::to_string(cuda_major);
  static const Library library("libcublasLt.so." + major, "CUDA " + major + "'s cuBLAS (package libcublas-" + major +
                                                              "-x, or pip's nvidia-cublas)");
  return library;
}
// Opens cuBLASLt if it exists. Other libraries that open it by name find it, even if the loader does not search its
// folder.
inline void open_cublaslt() { (void)cublaslt_library().found(); }

}  // namespace tutti::cuda

TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), handle)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), handle)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, const char*, cublasLtGetStatusName, (cublasStatus_t status), status)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, const char*, cublasLtGetStatusString, (cublasStatus_t status), status)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, size_t, cublasLtGetVersion, (), )
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtMatrixLayoutCreate,
                   (cublasLtMatrixLayout_t * layout, cudaDataType type, std::uint64_t rows, std::uint64_t columns,
                    std::int64_t stride),
                   layout, type, rows, columns, stride)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtMatrixLayoutDestroy,
                   (cublasLtMatrixLayout_t layout), layout)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtMatrixLayoutSetAttribute,
                   (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                    size_t size),
                   layout, attribute, value, size)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtMatmulDescCreate,
                   (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale), desc, compute,
                   scale)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtMatmulDescDestroy,
                   (cublasLtMatmulDesc_t desc), desc)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtMatmulDescSetAttribute,
                   (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value,
                    size_t size),
                   desc, attribute, value, size)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtMatmulPreferenceCreate,
                   (cublasLtMatmulPreference_t * preference), preference)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtMatmulPreferenceDestroy,
                   (cublasLtMatmulPreference_t preference), preference)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
                   (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                    const void* value, size_t size),
                   preference, attribute, value, size)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
                   (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                    cublasLtMatmulPreference_t preference, int requested, cublasLtMatmulHeuristicResult_t* results,
                    int* count),
                   handle, desc, a, b, c, d, preference, requested, results, count)
TUTTI_CUDA_FORWARD(tutti::cuda::cublaslt_library, cublasStatus_t, cublasLtMatmul,
                   (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                    cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                    const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                    const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_size, cudaStream_t stream),
                   handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace,
                   workspace_size, stream)
#endif

namespace tutti::cuda {
// Returns the version of cuBLASLt as a number, which it opens; "none" if it is missing.
inline std::string cublaslt_version() {
#if !defined(TUTTI_CUDA_LINK_LIBRARIES)
  if (!cublaslt_library().found()) return "none";
#endif
  return std::to_string(cublasLtGetVersion());
}
}  // namespace tutti::cuda
