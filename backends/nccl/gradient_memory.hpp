// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <span>

#include <tutti/backends/cuda/device.hpp>
#include <tutti/backends/nccl/api.hpp>
#include <tutti/backends/nccl/group.hpp>

namespace tutti {

// Device memory that is registered with a communicator: NCCL's kernels, NVLink SHARP and the network read it directly,
// without copies through NCCL's own buffers. NCCL 2.19 is the first version with these functions.
class NcclGradientMemory {
 public:
  explicit NcclGradientMemory(const NcclRegistration& functions) : f_(functions) {}
  // The communicator has ended. The device may still run kernels that use this memory, and NCCL does not wait for them.
  ~NcclGradientMemory() {
    if (data_ == nullptr) return;
    cudaStreamSynchronize(device_->stream());
    f_.release(data_);
  }
  NcclGradientMemory(const NcclGradientMemory&) = delete;
  NcclGradientMemory& operator=(const NcclGradientMemory&) = delete;

  // Returns `bytes` bytes of zeros, or an empty span if NCCL is too old or refuses: then the caller allocates memory
  // itself. Call it once, and not while a graph is captured.
  [[nodiscard]] std::span<std::byte> allocate(NcclGroup& group, std::size_t bytes) {
    if (!f_.complete() || data_ != nullptr || bytes == 0) return {};
    device_ = &group.device();
    device_->use();
    if (f_.allocate(&data_, bytes) != ncclSuccess) {
      data_ = nullptr;
      cudaGetLastError();  // clears the error: it is not sticky
      return {};
    }
    cuda::check(cudaMemsetAsync(data_, 0, bytes, group.device().stream()), "zeros");
    group.device().synchronise();
    // A communicator that cannot register memory still sums it.
    const ncclResult_t r = f_.enter(group.comm(), data_, bytes, &handle_);
    if (r == ncclInProgress)
      group.settle(r, "ncclCommRegister", "memory for gradients");
    else if (r != ncclSuccess)
      handle_ = nullptr;
    return {static_cast<std::byte*>(data_), bytes};
  }
  [[nodiscard]] bool registered() const noexcept { return handle_ != nullptr; }
  // Call it before the communicator is finalized. An aborted communicator has ended its registrations itself.
  void leave(NcclGroup& group) noexcept {
    if (handle_ != nullptr && group.comm() != nullptr) f_.leave(group.comm(), handle_);
    handle_ = nullptr;
  }

 private:
  NcclRegistration f_;
  const cuda::Device* device_ = nullptr;
  void *data_ = nullptr, *handle_ = nullptr;
};

}  // namespace tutti
