// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>

#include <tutti/backends/make/backend_options.hpp>
#include <tutti/backends/make/convolution_choices.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/isa.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/cpu/cpu_ops.hpp>
#include <tutti/engine/reference/reference.hpp>
#ifdef TUTTI_HAS_CUDA
#include <tutti/backends/cuda/cuda.hpp>
#endif
#ifdef TUTTI_HAS_ONEDNN
#include <tutti/backends/onednn/onednn.hpp>
#endif
#ifdef TUTTI_HAS_EIGEN
#include <tutti/backends/eigen/eigen.hpp>
#endif

// The list of all backends, the fastest first. Only the unit that defines make_backend() includes this file.
namespace tutti::detail {

struct BackendRow {
  const char* word;
  const char* packages;                                     // packages that a build needs for it
  std::unique_ptr<Backend> (*make)(const BackendOptions&);  // null: this program does not have it
  bool (*has_kernels)() = [] { return true; };              // fast ones, on this processor
  bool (*has_bf16)() = [] { return true; };                 // on this processor
};

// Ranks of a host share its cores.
inline int threads_of(const BackendOptions& o) {
  return o.threads > 0 ? o.threads : std::max(1, usable_cores() / read_launch_environment().local_size);
}
inline CpuOptions cpu_options(const BackendOptions& o) {
  CpuOptions c{threads_of(o), cpu::parse_convolution_algorithm(o.convolution), nullptr};
  if (c.convolution != cpu::ConvolutionAlgorithm::tune) return c;
  if (const cpu::Isa isa = cpu::detect_isa(); isa == cpu::Isa::baseline)
    fail<UsageError>(o.where, "AVX2 or AVX-512 together with convolution 'tune' (on ARM: NEON)", name_of(isa),
                     "this processor has only one way to compute convolutions: use auto");
  // One rank of each host reports the choices.
  c.choices = std::make_shared<ConvolutionChoices>(read_launch_environment().local_rank == 0 ? o.warn : nullptr);
  return c;
}
inline int device_of(const BackendOptions& o) { return o.device ? *o.device : read_launch_environment().local_rank; }

inline std::span<const BackendRow> backend_rows() {
  using Made = std::unique_ptr<Backend>;
  static constexpr BackendRow rows[] = {
      {"cuda", "the CUDA toolkit with cuDNN",
#ifdef TUTTI_HAS_CUDA
       [](const BackendOptions& o) -> Made {
         CudaOptions c;
         c.device = device_of(o);
         c.tf32 = o.tf32;
         c.autotune = o.autotune;
         c.deterministic = o.deterministic;
         c.fusion = parse_cuda_fusion(o.fusion);
         c.recompute = o.recompute;
         c.graph = o.graph;
         return std::make_unique<CudaBackend>(c);
       }
#else
       nullptr
#endif
      },
      {"onednn", "libdnnl-dev",
#ifdef TUTTI_HAS_ONEDNN
       [](const BackendOptions& o) -> Made { return std::make_unique<OnednnBackend>(cpu_options(o)); },
       &OnednnBackend::has_kernels, &OnednnBackend::has_bf16
#else
       nullptr
#endif
      },
      {"eigen", "libeigen3-dev",
#ifdef TUTTI_HAS_EIGEN
       [](const BackendOptions& o) -> Made { return std::make_unique<EigenBackend>(cpu_options(o)); }
#else
       nullptr
#endif
      },
      {"reference", "", [](const BackendOptions&) -> Made { return std::make_unique<ReferenceBackend>(); }},
  };
  return rows;
}

}  // namespace tutti::detail
