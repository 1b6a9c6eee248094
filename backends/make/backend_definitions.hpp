// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backends/make/backend.hpp>
#include <tutti/backends/make/backend_rows.hpp>
#include <tutti/backends/make/table.hpp>
#include <tutti/backends/make/unused_gpu.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/core/error.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION std::vector<std::string> built_backends() { return detail::built(detail::backend_rows()); }

TUTTI_CORE_FUNCTION std::string automatic_backend([[maybe_unused]] const BackendOptions& o) {
  // A server computes updates on the host, so that the workers can use the GPUs.
  [[maybe_unused]] const bool gpus = o.gpu && !read_launch_environment().is_server();
#ifdef TUTTI_HAS_CUDA
  if (gpus) {
    const cuda::GpuCheck gpu = cuda::check_gpu(detail::device_of(o));
    if (gpu.will_do) return "cuda";
    // If a GPU exists but is unusable, the program must not train on the CPU without a warning.
    const auto speaks = [&] {
      // One process of the host warns for all processes. In addition, each process for which the host has no further
      // GPU warns.
      return read_launch_environment().local_rank == 0 || (detail::device_of(o) > 0 && cuda::check_gpu(0).will_do);
    };
    if (!gpu.why.empty() && o.warn && speaks())
      o.warn(o.where + " auto trains on the processor, because the GPU cannot be used: " + gpu.why);
  }
#else
  // Also warns of a GPU that this program cannot use because it has no CUDA backend.
  if (gpus && o.warn && read_launch_environment().local_rank == 0)
    if (const std::string shown = detail::nvidia_gpu_of_host(); !shown.empty())
      o.warn(detail::unused_gpu(o.where, shown));
#endif
  for (const detail::BackendRow& r : detail::backend_rows())
    if (r.make != nullptr && std::string_view(r.word) != "cuda" && r.has_kernels() && (!o.bf16 || r.has_bf16()))
      return r.word;
  return "reference";
}

TUTTI_CORE_FUNCTION std::unique_ptr<Backend> make_backend(std::string_view word, const BackendOptions& o) {
  const std::string name = word == "auto" ? automatic_backend(o) : std::string(word);
  const detail::BackendRow* row = detail::find_row(detail::backend_rows(), name);
  if (row == nullptr || row->make == nullptr)
    fail<UsageError>(o.where, {"auto or a backend of this build: ", detail::listed(built_backends(), ", ")}, name,
                     row == nullptr ? "" : "install " + std::string(row->packages) + " and build again");
  if (o.convolution != "auto" && name != "onednn" && name != "eigen")
    fail<UsageError>(o.where, {"onednn or eigen together with convolution '", o.convolution, "'"}, name,
                     "other backends have only one way to compute convolutions");
  return row->make(o);
}

TUTTI_CORE_FUNCTION int count_gpus() {
#ifdef TUTTI_HAS_CUDA
  return cuda::count_devices();
#else
  return 0;
#endif
}

TUTTI_CORE_FUNCTION std::string gpu_without_bf16([[maybe_unused]] Backend& backend) {
#ifdef TUTTI_HAS_CUDA
  if (auto* const on = dynamic_cast<CudaBackend*>(&backend);
      on != nullptr && !cuda::has_bf16(on->device().architecture()))
    return on->device().name_and_capability();
#endif
  return {};
}

}  // namespace tutti
