// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/cuda/ops/cached_norms.hpp>
#include <tutti/core/dtype.hpp>

// Batch norms in one kernel.
namespace tutti::cuda {

// Starts the kernels that make all passes of a batch norm, if its data fits the cache and their blocks fit the GPU.
class NormOnce {
 public:
  NormOnce(DeviceMemory& memory, Launcher& l) : memory_(memory), launcher_(l) {}

  // Call before the first run, outside of captures.
  void reserve() {
    if (arrived_.bytes() > 0) return;
    arrived_ = Buffer(memory_, sizeof(unsigned));  // which contains zero
  }
  // From now on run() returns false: the compiler may contract products and sums of the two forms differently, and
  // which one runs depends on the GPU and on the number of ranks.
  void keep_separate() noexcept { separate_ = true; }
  [[nodiscard]] bool separate() const noexcept { return separate_; }
  // Returns whether run() may start a kernel for tensors of so many bytes.
  [[nodiscard]] bool may_run(std::int64_t bytes) const {
    const Device& device = memory_.device();
    const cudaDeviceProp& p = device.properties();
    return !separate_ && arrived_.bytes() > 0 && p.cooperativeLaunch != 0 && device.ranks() <= 1 &&
           fits_cache(bytes, p.l2CacheSize);
  }
  // Returns the number on which the blocks wait for each other.
  [[nodiscard]] void* arrived() const noexcept { return arrived_.data(); }

  // Starts kernel k and returns true if its data fits the L2 cache and all of its blocks fit the GPU. grid: the
  // channels and the chunks; with fewer blocks than chunks, a block takes several. bytes: of all its tensors. If a step
  // of several ranks shares the GPU with kernels that wait for other ranks, the blocks would have to wait for those:
  // returns false.
  template <class... A>
  [[nodiscard]] bool run(DType t, OpKernel k, dim3 grid, std::int64_t bytes, A... arguments) const {
    if (!may_run(bytes)) return false;
    return launcher_.op_together(t, k, grid, Launcher::block, arguments...);
  }

 private:
  DeviceMemory& memory_;
  Launcher& launcher_;
  Buffer arrived_;
  bool separate_ = false;
};

}  // namespace tutti::cuda
