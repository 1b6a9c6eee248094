// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <new>
#include <span>

#include <tutti/comm/work.hpp>

namespace tutti::bench {

inline Deadline in_time() { return Deadline(std::chrono::seconds(120)); }

// Page-aligned memory. The constructor touches each page.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes), p_(::operator new(bytes, alignment)) {
    std::memset(p_, 0, bytes);
  }
  ~Memory() { ::operator delete(p_, alignment); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] std::span<float> floats() const { return {static_cast<float*>(p_), bytes_ / 4}; }

 private:
  static constexpr std::align_val_t alignment{4096};
  std::size_t bytes_;
  void* p_;
};

}  // namespace tutti::bench
