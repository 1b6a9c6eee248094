// The four memory passes of a training batch norm with its rectifier.
#pragma once
#include <cstdio>

#include "measure.hpp"

// ---- 3. batch-norm passes, NHWC. One loop for 16, 32 and 64 channels: per-channel vectors repeat every 64 elements
// ---
template <class T>
AVX512 void bn_statistics(const T* x, long n, float* sum, float* squares) {
  __m512 s[4], q[4];
  UNROLL for (int k = 0; k < 4; ++k) s[k] = q[k] = _mm512_setzero_ps();
  for (long i = 0; i < n; i += 64) {
    UNROLL for (int k = 0; k < 4; ++k) {
      const __m512 v = load(x + i + 16 * k);
      s[k] = _mm512_add_ps(s[k], v);
      q[k] = _mm512_fmadd_ps(v, v, q[k]);
    }
  }
  UNROLL for (int k = 0; k < 4; ++k) store(sum + 16 * k, s[k]), store(squares + 16 * k, q[k]);
}
template <class T>
AVX512 void bn_apply_relu(const T* x, T* y, long n, const float* a, const float* b) {
  __m512 va[4], vb[4];
  UNROLL for (int k = 0; k < 4; ++k) va[k] = load(a + 16 * k), vb[k] = load(b + 16 * k);
  for (long i = 0; i < n; i += 64)
    UNROLL for (int k = 0; k < 4; ++k)
        store(y + i + 16 * k, _mm512_max_ps(_mm512_fmadd_ps(load(x + i + 16 * k), va[k], vb[k]), _mm512_setzero_ps()));
}
// The mask of the rectifier is computed from x (x * a + b > 0), so the output is not read again.
template <class T>
AVX512 void bn_reduce(const T* x, const T* dy, long n, const float* a, const float* b, float* sum, float* dot) {
  __m512 va[4], vb[4], s[4], d[4];
  UNROLL for (int k = 0; k < 4; ++k) va[k] = load(a + 16 * k), vb[k] = load(b + 16 * k),
                                     s[k] = d[k] = _mm512_setzero_ps();
  for (long i = 0; i < n; i += 64) {
    UNROLL for (int k = 0; k < 4; ++k) {
      const __m512 v = load(x + i + 16 * k);
      const __mmask16 on = _mm512_cmp_ps_mask(_mm512_fmadd_ps(v, va[k], vb[k]), _mm512_setzero_ps(), _CMP_GT_OQ);
      const __m512 g = _mm512_maskz_mov_ps(on, load(dy + i + 16 * k));
      s[k] = _mm512_add_ps(s[k], g);
      d[k] = _mm512_fmadd_ps(g, v, d[k]);
    }
  }
  UNROLL for (int k = 0; k < 4; ++k) store(sum + 16 * k, s[k]), store(dot + 16 * k, d[k]);
}
template <class T>
AVX512 void bn_input_gradient(const T* x, T* dy, long n, const float* a, const float* b, const float* c,
                              const float* e) {
  __m512 va[4], vb[4], vc[4], ve[4];
  UNROLL for (int k = 0; k < 4; ++k) va[k] = load(a + 16 * k), vb[k] = load(b + 16 * k), vc[k] = load(c + 16 * k),
                                     ve[k] = load(e + 16 * k);
  for (long i = 0; i < n; i += 64) {
    UNROLL for (int k = 0; k < 4; ++k) {
      const __m512 v = load(x + i + 16 * k);
      const __mmask16 on = _mm512_cmp_ps_mask(_mm512_fmadd_ps(v, va[k], vb[k]), _mm512_setzero_ps(), _CMP_GT_OQ);
      const __m512 g = _mm512_maskz_mov_ps(on, load(dy + i + 16 * k));
      store(dy + i + 16 * k, _mm512_fmadd_ps(g, va[k], _mm512_fmadd_ps(v, vc[k], ve[k])));
    }
  }
}

template <class T>
void bench_bn(const char* type) {
  const char* names[] = {"statistics", "apply+relu", "bwd reduce", "bwd apply (in place)"};
  const double streams[] = {1, 2, 2, 3};
  for (const auto& [where, bytes] :
       {std::pair{"256 KB", 256L << 10}, {"512 KB", 512L << 10}, {"8 MB", 8L << 20}, {"64 MB", 64L << 20}}) {
    for (int pass = 0; pass < 4; ++pass) {
      std::printf("%s %-6s %-21s", type, where, names[pass]);
      for (const int threads : {1, 2}) {
        const long n = bytes / long(sizeof(T));
        const double t = timed(threads, [=] {
          auto x = buffer(bytes), y = buffer(bytes), p = buffer(4 * 64 * 6);
          return Job([=] {
            float* f = p->template as<float>();
            T *px = x->template as<T>(), *py = y->template as<T>();
            if (pass == 0) bn_statistics(px, n, f, f + 64);
            if (pass == 1) bn_apply_relu(px, py, n, f, f + 64);
            if (pass == 2) bn_reduce(px, py, n, f, f + 64, f + 128, f + 192);
            if (pass == 3) bn_input_gradient(px, py, n, f, f + 64, f + 128, f + 192);
          });
        });
        std::printf("  t%d: %.3f ns/element %5.1f GB/s per core", threads, t / n * 1e9,
                    streams[pass] * bytes / t * 1e-9);
      }
      std::printf("\n");
    }
  }
}
