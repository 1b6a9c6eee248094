// Timing, buffers, the multiply-add peak, and loads and stores of 16 channels: what the parts of floor.cpp share.
#pragma once
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define AVX512_INLINE AVX512 __attribute__((always_inline)) inline
#define UNROLL _Pragma("GCC unroll 32")

inline void keep(float v) { asm volatile("" : : "x"(v)); }  // the compiler may not drop its computation

using Job = std::function<void()>;
using bf16 = std::uint16_t;

// ---- timing --------------------------------------------------------------------------------------------------------
inline double seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Seconds per call, best of several trials, with `make()`'s job running in each of `threads` threads at once. The clock
// is the thread's CPU time, so that other programs on the same cores disturb less; with an OpenMP team it is the wall
// clock.
inline double timed(int threads, const std::function<Job()>& make, int omp = 1, double budget = 0.008, int trials = 4) {
  const clockid_t clock = omp > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
  std::barrier sync(threads);
  std::vector<double> best(threads, 1e9);
  int reps = 1;
  auto body = [&](int id) {
    omp_set_num_threads(omp);
    Job job = make();
    job(), job();
    if (id == 0) {
      const double t = seconds(clock);
      job();
      reps = std::max(1, int(budget / (seconds(clock) - t)));
    }
    for (int i = 0; i < trials; ++i) {
      sync.arrive_and_wait();
      const double t = seconds(clock);
      for (int r = 0; r < reps; ++r) job();
      best[id] = std::min(best[id], (seconds(clock) - t) / reps);
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(body, i);
    body(0);
  }
  return *std::max_element(best.begin(), best.end());
}

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

// ---- 0. peak -------------------------------------------------------------------------------------------------------
template <class T>
AVX512 __attribute__((noinline)) float peak_loop(long n) {
  __m512 acc[20];
  const __m512 a = _mm512_set1_ps(0.5f);
  UNROLL for (auto& v : acc) v = a;
  for (long i = 0; i < n; ++i) {
    UNROLL for (auto& v : acc) {
      if constexpr (sizeof(T) == 4)
        v = _mm512_fmadd_ps(v, a, a);
      else
        v = _mm512_dpbf16_ps(v, (__m512bh)a, (__m512bh)a);
      asm volatile("" : "+v"(v));
    }
  }
  __m512 sum = acc[0];
  UNROLL for (auto& v : acc) sum = _mm512_add_ps(sum, v);
  return _mm512_reduce_add_ps(sum);
}

template <class T>
double peak(int threads) {
  constexpr long n = 100000;
  const double t = timed(
      threads, [] { return Job([] { keep(peak_loop<T>(n)); }); }, 1, 0.02, 6);
  return n * 20.0 * (sizeof(T) == 4 ? 32 : 64) / t * 1e-9;
}

// ---- vectors of 16 channels --------------------------------------------------------------------------------
AVX512_INLINE __m512 load(const float* p) { return _mm512_loadu_ps(p); }
AVX512_INLINE __m512 load(const bf16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
AVX512_INLINE void store(float* p, __m512 v) { _mm512_storeu_ps(p, v); }
AVX512_INLINE void store(bf16* p, __m512 v) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v)); }
