// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <concepts>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include <tutti/core/error.hpp>

namespace tutti {

// Where a backend's tensors live and how bytes move in and out of it.
template <class M>
concept MemorySpace = requires(M& m, void* p, const void* q, std::size_t n) {
  { m.allocate(n) } -> std::same_as<void*>;
  m.deallocate(p, n);
  m.zero(p, n);
  m.copy_in(p, q, n);   // host -> space
  m.copy_out(p, q, n);  // space -> host
  m.copy(p, q, n);      // within the space
  m.synchronise();
};

// The host's own memory, aligned to 64 bytes.
struct HostMemory {
  static constexpr std::size_t alignment = 64, huge_page = std::size_t{2} << 20;

  // Not inlined: GCC 12 mixes up the sizes of the two alignments and warns of it.
  [[nodiscard, gnu::noinline]] void* allocate(std::size_t bytes) {
    if (bytes > std::numeric_limits<std::ptrdiff_t>::max() - huge_page)
      fail<DeviceError>("HostMemory", "a size that fits in memory", std::to_string(bytes) + " bytes");
    // Large arenas in huge pages, where the system has them: fewer misses of the address cache.
    const std::size_t align = bytes >= 2 * huge_page ? huge_page : alignment;
    const std::size_t rounded = (bytes + align - 1) / align * align;
    void* p = std::aligned_alloc(align, rounded ? rounded : align);
    if (p == nullptr)
      fail<DeviceError>("HostMemory", std::to_string(bytes) + " bytes of memory", "none",
                        "use a smaller --batch-size or --precision bf16");
    if (align == huge_page) ::madvise(p, rounded, MADV_HUGEPAGE);
    return p;
  }
  void deallocate(void* p, std::size_t) noexcept { std::free(p); }
  void zero(void* p, std::size_t n) noexcept { std::memset(p, 0, n); }
  void copy_in(void* to, const void* from, std::size_t n) noexcept { std::memcpy(to, from, n); }
  void copy_out(void* to, const void* from, std::size_t n) noexcept { std::memcpy(to, from, n); }
  void copy(void* to, const void* from, std::size_t n) noexcept { std::memcpy(to, from, n); }
  void synchronise() noexcept {}
};

// One allocation in a memory space, given back on destruction.
template <class M>
class Buffer {
 public:
  Buffer() = default;
  Buffer(M& memory, std::size_t bytes) : memory_(&memory), data_(memory.allocate(bytes)), bytes_(bytes) {
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

  M* memory_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tutti
