// SPDX-License-Identifier: MIT
// Timing by the CPU time of each thread, and the multiply-add peak, for roofline.cpp and the benchmarks in the parent
// folder.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#define UNROLL _Pragma("GCC unroll 32")

namespace measured {

template <class V>
inline void keep(V v) {  // prevents the compiler from removing the computation
  asm volatile("" : : "g"(&v) : "memory");
}

using Job = std::function<void()>;

// ---- timing --------------------------------------------------------------------------------------------------------
inline double seconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Returns the seconds of a call, as the best of several trials. Each of `threads` threads runs the job of `make()` at
// the same time. The clock is the thread's CPU time, which other programs on the same cores disturb less. A job with
// its own threads needs the wall clock, CLOCK_MONOTONIC.
inline double timed(int threads, const std::function<Job()>& make, clockid_t clock = CLOCK_THREAD_CPUTIME_ID,
                    double budget = 0.008, int trials = 4) {
  std::barrier sync(threads);
  std::vector<double> best(std::size_t(threads), 1e9);
  int reps = 1;
  auto body = [&](int id) {
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
      auto& mine = best[std::size_t(id)];
      mine = std::min(mine, (seconds(clock) - t) / reps);
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(body, i);
    body(0);
  }
  return *std::max_element(best.begin(), best.end());
}

// ---- 0. peak -------------------------------------------------------------------------------------------------------
// Each loop runs n rounds on 20 (12) independent accumulators and returns a number that is not used.
#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define AVX512_INLINE AVX512 __attribute__((always_inline)) inline

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
  return sum[0];
}

__attribute__((target("avx2,fma"), noinline)) inline float peak_loop_avx2(long n) {
  __m256 acc[12];
  const __m256 a = _mm256_set1_ps(0.5f);
  UNROLL for (auto& v : acc) v = a;
  for (long i = 0; i < n; ++i) UNROLL for (auto& v : acc) {
      v = _mm256_fmadd_ps(v, a, a);
      asm volatile("" : "+x"(v));
    }
  __m256 sum = acc[0];
  UNROLL for (auto& v : acc) sum = _mm256_add_ps(sum, v);
  return sum[0];
}
#endif

// Vectors of 4. The compiler selects the instructions for the multiplication and the addition.
__attribute__((noinline)) inline float peak_loop_plain(long n) {
  using Vector = float __attribute__((vector_size(16)));
  Vector acc[12];
  Vector a = {0.5f, 0.5f, 0.5f, 0.5f};
  UNROLL for (auto& v : acc) v = a;
  for (long i = 0; i < n; ++i) UNROLL for (auto& v : acc) {
      v = v * a + a;
#if defined(__x86_64__)
      asm volatile("" : "+x"(v));
#else
      asm volatile("" : "+w"(v));
#endif
    }
  Vector sum = acc[0];
  UNROLL for (auto& v : acc) sum += v;
  return sum[0];
}

// Returns the GFLOP/s of each of `threads` threads that run `loop` at the same time. flops: of one round.
inline double peak_of(float (*loop)(long), double flops, int threads) {
  constexpr long n = 100000;
  const double t = timed(
      threads, [loop] { return Job([loop] { keep(loop(n)); }); }, CLOCK_THREAD_CPUTIME_ID, 0.02, 6);
  return double(n) * flops / t * 1e-9;
}

// Returns the multiply-add peak of this processor for T. 4 bytes: f32. 2 bytes: bf16 into f32 if the processor has
// instructions for it, otherwise f32.
template <class T>
double peak(int threads) {
#if defined(__x86_64__)
  const bool avx512 = __builtin_cpu_supports("avx512f");
  if (sizeof(T) == 2 && avx512 && __builtin_cpu_supports("avx512bf16")) return peak_of(peak_loop<T>, 20 * 64, threads);
  if (avx512) return peak_of(peak_loop<float>, 20 * 32, threads);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return peak_of(peak_loop_avx2, 12 * 16, threads);
#endif
  return peak_of(peak_loop_plain, 12 * 8, threads);
}

}  // namespace measured
