// Buffers, and loads and stores of 16 channels, for the parts of roofline.cpp.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "peak.hpp"

using namespace measured;
using bf16 = std::uint16_t;

struct Buffer {  // 64-byte aligned, filled with small numbers that are valid as f32 and as bf16
  explicit Buffer(std::size_t bytes, int fill = 0x3c) : data(std::aligned_alloc(64, (bytes + 127) / 64 * 64)) {
    std::memset(data.get(), fill, (bytes + 127) / 64 * 64);
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data.get());
  }
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> data;
};
using Shared = std::shared_ptr<Buffer>;
inline Shared buffer(std::size_t bytes, int fill = 0x3c) { return std::make_shared<Buffer>(bytes, fill); }

// ---- vectors of 16 channels --------------------------------------------------------------------------------
AVX512_INLINE __m512 load(const float* p) { return _mm512_loadu_ps(p); }
AVX512_INLINE __m512 load(const bf16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
AVX512_INLINE void store(float* p, __m512 v) { _mm512_storeu_ps(p, v); }
AVX512_INLINE void store(bf16* p, __m512 v) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v)); }
