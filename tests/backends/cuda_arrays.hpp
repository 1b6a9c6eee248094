// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <tutti/backends/cuda/memory.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/float/bf16.hpp>
#include <tutti/core/float/f16.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/tensor/memory.hpp>

// Copies numbers between the memory of the host and of the device, for tests.
namespace tutti::testing {

using Numbers = std::vector<float>;

inline std::vector<std::byte> encode(DType t, const Numbers& v) {
  std::vector<std::byte> bytes(v.size() * size_of(t));
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (t == DType::bf16) {
      const bf16 x(v[i]);
      std::memcpy(bytes.data() + 2 * i, &x, 2);
    } else if (t == DType::f16) {
      const f16 x(v[i]);
      std::memcpy(bytes.data() + 2 * i, &x, 2);
    } else {
      std::memcpy(bytes.data() + 4 * i, &v[i], 4);
    }
  }
  return bytes;
}
inline Numbers decode(DType t, std::span<const std::byte> bytes) {
  Numbers v(bytes.size() / size_of(t));
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (t == DType::bf16) {
      bf16 x;
      std::memcpy(&x, bytes.data() + 2 * i, 2);
      v[i] = static_cast<float>(x);
    } else if (t == DType::f16) {
      f16 x;
      std::memcpy(&x, bytes.data() + 2 * i, 2);
      v[i] = static_cast<float>(x);
    } else {
      std::memcpy(&v[i], bytes.data() + 4 * i, 4);
    }
  }
  return v;
}

// Returns normally distributed numbers that the type can represent.
inline Numbers normal(DType t, std::size_t n, std::uint64_t seed, double mean = 0, double deviation = 1) {
  Rng rng(seed, Purpose::user, 0, 0);
  Numbers v(n);
  for (float& x : v) x = static_cast<float>(mean + deviation * rng.normal());
  return decode(t, encode(t, v));
}

class DeviceArray {
 public:
  DeviceArray(cuda::DeviceMemory& m, DType t, const Numbers& v) : DeviceArray(m, t, v.size()) {
    const auto bytes = encode(t, v);
    m.copy_in(buffer_.data(), bytes.data(), bytes.size());
    m.synchronise();
  }
  DeviceArray(cuda::DeviceMemory& m, DType t, std::size_t n) : memory_(&m), type_(t), buffer_(m, n * size_of(t)) {}

  [[nodiscard]] void* data() const { return buffer_.data(); }
  [[nodiscard]] float* f32() const { return static_cast<float*>(buffer_.data()); }
  [[nodiscard]] Numbers numbers() const {
    std::vector<std::byte> bytes(buffer_.bytes());
    memory_->copy_out(bytes.data(), buffer_.data(), bytes.size());
    return decode(type_, bytes);
  }

 private:
  cuda::DeviceMemory* memory_;
  DType type_;
  Buffer buffer_;
};

// Returns the largest difference divided by the largest expected number.
inline double distance(const Numbers& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return INFINITY;
  double most = 0, largest = 1e-30;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!(d <= most)) most = d;  // is true also for a NaN, which `most` then keeps
    largest = std::max(largest, std::abs(want[i]));
  }
  return most / largest;
}

}  // namespace tutti::testing
