// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <tutti/backends/cuda/cublas/gemm.hpp>
#include <tutti/backends/cuda/cudnn/convolution.hpp>
#include <tutti/backends/cuda/cudnn/tuning_time.hpp>
#include <tutti/backends/cuda/nvrtc.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

// Whether batch norms run within the convolutions next to them. automatic: in f16 on GPUs for which fusion is known to
// be faster; if autotune is true, also in other 16-bit cases if a measurement finds fusion faster. on: whenever the
// graph allows it, in every type.
enum class CudaFusion : std::uint8_t { automatic, on, off };

// Parses "auto", "on" or "off". Throws UsageError for any other text.
[[nodiscard]] inline CudaFusion parse_cuda_fusion(std::string_view text) {
  if (text == "auto") return CudaFusion::automatic;
  if (text == "on") return CudaFusion::on;
  if (text != "off") fail<UsageError>("--cuda-fusion", "auto, on or off", {"'", text, "'"});
  return CudaFusion::off;
}

[[nodiscard]] constexpr std::string_view name_of(CudaFusion f) noexcept {  // Returns "auto" and so on.
  return f == CudaFusion::automatic ? "auto" : f == CudaFusion::on ? "on" : "off";
}

struct CudaOptions {  // options of CudaBackend
  int device = 0;     // number as in nvidia-smi -L and CUDA_VISIBLE_DEVICES
  // f32 products with the precision of TF32: true: all; false: none. Empty: those of convolutions, if the GPU has TF32,
  // and not those of fully connected layers, which is PyTorch's default.
  std::optional<bool> tf32{};
  bool deterministic = false;  // only library kernels that give the same bits every time, as tutti's always do
  // Measure the libraries' kernels when plans are made, if no result is stored. Empty: for at most usual_tuning_limit.
  std::optional<bool> autotune{};
  // Take no kernel because of a measurement, nor of one that an earlier process stored (Backend::fix_division).
  bool fixed_kernels = false;
  CudaFusion fusion = CudaFusion::automatic;
  bool recompute = false;     // recompute activations instead of keeping them if that saves memory
  bool early_kernels = true;  // kernels start before the kernel before them has ended, if the GPU can do it (Launcher)
  bool graph = false;         // capture each run of a plan as a CUDA graph and replay it
  std::filesystem::path kernel_folder = cuda::default_cache_folder();  // folder of compiled kernels; empty: not stored
};

namespace cuda {

[[nodiscard]] inline ConvolutionOptions convolution_options(const CudaOptions& o) {
  ConvolutionOptions c;
  c.tf32 = o.tf32.value_or(true);
  c.autotune = o.autotune.value_or(true);
  if (!o.autotune) c.tuning_limit = usual_tuning_limit;
  c.deterministic = o.deterministic;
  c.fallback_fusions = o.fusion == CudaFusion::on;
  c.measured = !o.fixed_kernels;
  return c;
}
[[nodiscard]] inline GemmOptions gemm_options(const CudaOptions& o) {
  GemmOptions g;
  g.tf32 = o.tf32.value_or(false);
  return g;
}

}  // namespace cuda
}  // namespace tutti
