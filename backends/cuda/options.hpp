// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>

#include <tutti/backends/cuda/cublas/gemm.hpp>
#include <tutti/backends/cuda/cudnn/convolution.hpp>
#include <tutti/backends/cuda/nvrtc.hpp>

namespace tutti {

struct CudaOptions {
  int device = 0;              // as nvidia-smi -L and CUDA_VISIBLE_DEVICES count
  bool tf32 = false;           // f32 products with the precision of TF32
  bool deterministic = false;  // only library kernels that give the same bits every time; ours always do
  bool autotune = false;       // time the libraries' kernels when plans are made
  bool graph = false;          // capture each run of a plan as a CUDA graph and replay it
  std::filesystem::path kernel_folder = cuda::default_cache_folder();  // compiled kernels; empty: not kept
};

namespace cuda {

[[nodiscard]] inline ConvolutionOptions convolution_options(const CudaOptions& o) {
  ConvolutionOptions c;
  c.tf32 = o.tf32;
  c.autotune = o.autotune;
  c.deterministic = o.deterministic;
  return c;
}
[[nodiscard]] inline GemmOptions gemm_options(const CudaOptions& o) {
  GemmOptions g;
  g.tf32 = o.tf32;
  return g;
}

}  // namespace cuda
}  // namespace tutti
