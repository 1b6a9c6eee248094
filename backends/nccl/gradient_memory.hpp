// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include <tutti/backends/cuda/device.hpp>
#include <tutti/backends/nccl/api.hpp>
#include <tutti/backends/nccl/group.hpp>

namespace tutti {

// Device memory of NCCL's allocator, which communicators can register (NcclGradients). It belongs to the process and
// may outlive communicators. NCCL 2.19 is the first version with these functions.
class NcclMemory {
 public:
  // Returns memory that contains zeros, or null if NCCL is too old or refuses. Must not be called while a graph is
  // captured. The device must outlive the memory.
  [[nodiscard]] static std::shared_ptr<NcclMemory> allocate(const NcclRegistration& f, const cuda::Device& device,
                                                            std::size_t bytes) {
    if (!f.complete() || bytes == 0) return {};
    device.use();
    void* data = nullptr;
    if (f.allocate(&data, bytes) != ncclSuccess) {
      cudaGetLastError();  // clears the error: it is not sticky
      return {};
    }
    std::shared_ptr<NcclMemory> m(new NcclMemory(f, device, data, bytes));
    cuda::check(cudaMemsetAsync(data, 0, bytes, device.stream()), "zeros");
    device.synchronise();
    return m;
  }
  // The device may still run kernels that use this memory, and NCCL does not wait for them.
  ~NcclMemory() {
    cudaStreamSynchronize(device_.stream());
    f_.release(data_);
    device_.hold_less(bytes_);
  }
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  NcclMemory(const NcclRegistration& f, const cuda::Device& device, void* data, std::size_t bytes)
      : f_(f), device_(device), data_(data), bytes_(bytes) {
    device_.hold(bytes_);
  }

  NcclRegistration f_;
  const cuda::Device& device_;
  void* data_;
  std::size_t bytes_;
};

// The memory of gradients that is registered with a communicator: NCCL's kernels, NVLink SHARP and the network read it
// directly, without copies through NCCL's own buffers.
class NcclGradients {
 public:
  explicit NcclGradients(const NcclRegistration& functions) : f_(functions) {}

  [[nodiscard]] const NcclRegistration& functions() const noexcept { return f_; }
  [[nodiscard]] bool any() const noexcept { return memory_ != nullptr; }
  // Registers memory of this process. Call it once, and not while a graph is captured. A communicator that cannot
  // register memory still sums it.
  void enter(NcclGroup& group, std::shared_ptr<NcclMemory> memory) {
    memory_ = std::move(memory);
    const ncclResult_t r = f_.enter(group.comm(), memory_->bytes().data(), memory_->bytes().size(), &handle_);
    if (r == ncclInProgress)
      group.settle(r, "ncclCommRegister", "memory for gradients");
    else if (r != ncclSuccess)
      handle_ = nullptr;
  }
  // Call it before the communicator is finalized, after all operations on the memory have ended. An aborted
  // communicator has ended its registrations itself.
  void leave(NcclGroup& group) noexcept {
    if (handle_ != nullptr && group.comm() != nullptr) f_.leave(group.comm(), handle_);
    handle_ = nullptr;
  }

 private:
  NcclRegistration f_;
  std::shared_ptr<NcclMemory> memory_;
  void* handle_ = nullptr;
};

}  // namespace tutti
