// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include <tutti/core/error.hpp>

namespace tutti {

// A memory space that holds tensors, and the copies into and out of it.
class Memory {
 public:
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

  virtual ~Memory() = default;
  // Throws DeviceError if there is not enough memory.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* p, std::size_t bytes) noexcept = 0;
  virtual void zero(void* p, std::size_t n) = 0;
  virtual void copy_in(void* to, const void* from, std::size_t n) = 0;  // from the host
  // to the host; waits until all operations that were started have ended
  virtual void copy_out(void* to, const void* from, std::size_t n) = 0;
  virtual void copy(void* to, const void* from, std::size_t n) = 0;  // within the space
  // Waits until all operations that were started have ended.
  virtual void synchronise() = 0;

  // Returns whether the CPU can read the memory directly.
  [[nodiscard]] virtual bool on_host() const noexcept { return false; }
  // free_bytes: bytes that can still be allocated, or `unlimited` if the space reports no limit. allocated_bytes: bytes
  // that are allocated now.
  [[nodiscard]] virtual std::size_t free_bytes() const { return unlimited; }
  [[nodiscard]] virtual std::size_t allocated_bytes() const noexcept { return 0; }

 protected:
  Memory() = default;
  Memory(const Memory&) = default;
  Memory& operator=(const Memory&) = default;
};

// The host's memory, aligned to 64 bytes.
class HostMemory : public Memory {
 public:
  static constexpr std::size_t alignment = 64, huge_page = std::size_t{2} << 20;

  // Not inlined: GCC 12 confuses the sizes of the two alignments and prints a warning.
  [[nodiscard, gnu::noinline]] void* allocate(std::size_t bytes) override {
    if (bytes > std::numeric_limits<std::ptrdiff_t>::max() - huge_page)
      fail<DeviceError>("HostMemory", "a size that fits in memory", {bytes, " bytes"});
    // Large arenas use huge pages if the system has them: fewer TLB misses.
    const std::size_t align = bytes >= 2 * huge_page ? huge_page : alignment;
    const std::size_t rounded = (bytes + align - 1) / align * align;
    void* p = std::aligned_alloc(align, rounded ? rounded : align);
    if (p == nullptr)
      fail<DeviceError>("HostMemory", {bytes, " bytes of memory"}, "no memory",
                        "use a smaller --batch-size or --precision bf16");
    if (align == huge_page) ::madvise(p, rounded, MADV_HUGEPAGE);
    return p;
  }
  void deallocate(void* p, std::size_t) noexcept override { std::free(p); }
  void zero(void* p, std::size_t n) noexcept override { std::memset(p, 0, n); }
  void copy_in(void* to, const void* from, std::size_t n) noexcept override { std::memcpy(to, from, n); }
  void copy_out(void* to, const void* from, std::size_t n) noexcept override { std::memcpy(to, from, n); }
  void copy(void* to, const void* from, std::size_t n) noexcept override { std::memcpy(to, from, n); }
  void synchronise() noexcept override {}
  [[nodiscard]] bool on_host() const noexcept override { return true; }
};

// One allocation in a memory space. The constructor zeroes it, the destructor frees it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Memory& memory, std::size_t bytes) : memory_(&memory), data_(memory.allocate(bytes)), bytes_(bytes) {
    memory.zero(data_, bytes);
  }
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    swap(o);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) memory_->deallocate(data_, bytes_);
  }

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return static_cast<std::byte*>(data_) + offset; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  void swap(Buffer& o) noexcept {
    std::swap(memory_, o.memory_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
  }

  Memory* memory_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tutti
