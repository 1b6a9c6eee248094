// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <tutti/backends/cuda/memory.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti::cuda {

// One block of device memory, which ops use one after the other, in the order of the stream. Its size is known when
// plans are made.
class Workspace {
 public:
  static constexpr std::size_t alignment = 256;
  [[nodiscard]] static constexpr std::size_t round_up(std::size_t bytes) noexcept {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  explicit Workspace(DeviceMemory& memory) : memory_(memory) {}

  // Makes the workspace at least this large. Call before the first run that needs it. Runs that were captured with the
  // old address must be captured again.
  void reserve(std::size_t bytes) {
    if (bytes <= buffer_.bytes()) return;
    buffer_ = {};
    buffer_ = Buffer(memory_, round_up(bytes));
  }
  [[nodiscard]] void* data() const noexcept { return buffer_.data(); }
  template <class T>
  [[nodiscard]] T* at(std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(static_cast<std::byte*>(buffer_.data()) + offset);
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return buffer_.bytes(); }

 private:
  DeviceMemory& memory_;
  Buffer buffer_;
};

}  // namespace tutti::cuda
