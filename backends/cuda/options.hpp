// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <tutti/backends/cuda/cublas/gemm.hpp>
#include <tutti/backends/cuda/cudnn/convolution.hpp>
#include <tutti/backends/cuda/nvrtc.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// Whether batch norms run within the convolutions beside them. automatic: in f16 on GPUs where that is known to pay,
// or, with autotune and 16 bits, where it is measured to; on: wherever the graph allows, in every type.
enum class CudaFusion : std::uint8_t { automatic, on, off };

// "auto", "on", "off"; UsageError for anything else.
[[nodiscard]] inline CudaFusion parse_cuda_fusion(std::string_view text) {
  if (text == "auto") return CudaFusion::automatic;
  if (text == "on") return CudaFusion::on;
  if (text != "off") fail<UsageError>("--cuda-fusion", "auto, on or off", "'" + std::string(text) + "'");
  return CudaFusion::off;
}

struct CudaOptions {           // what CudaBackend can be told
  int device = 0;              // as nvidia-smi -L and CUDA_VISIBLE_DEVICES count
  bool tf32 = false;           // f32 products with the precision of TF32
  bool deterministic = false;  // only library kernels that give the same bits every time; ours always do
  bool autotune = false;       // time the libraries' kernels when plans are made
  CudaFusion fusion = CudaFusion::automatic;
  bool recompute = false;  // compute activations again where that saves memory, rather than keep them
  bool graph = false;      // capture each run of a plan as a CUDA graph and replay it
  std::filesystem::path kernel_folder = cuda::default_cache_folder();  // compiled kernels; empty: not kept
};

namespace cuda {

[[nodiscard]] inline ConvolutionOptions convolution_options(const CudaOptions& o) {
  ConvolutionOptions c;
  c.tf32 = o.tf32;
  c.autotune = o.autotune;
  c.deterministic = o.deterministic;
  c.fallback_fusions = o.fusion == CudaFusion::on;
  return c;
}
[[nodiscard]] inline GemmOptions gemm_options(const CudaOptions& o) {
  GemmOptions g;
  g.tf32 = o.tf32;
  return g;
}

}  // namespace cuda
}  // namespace tutti
