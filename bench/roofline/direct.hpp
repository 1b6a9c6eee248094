// Direct 3x3 convolutions with AVX-512 for few channels, compared with simple loops.
#pragma once
#include <cmath>
#include <cstdio>
#include <type_traits>

#include "measure.hpp"

// ---- 4. direct 3x3 convolutions of our own, NHWC, stride 1 ----------------------------------------------------------
// Forward (and the input gradient, with flipped and transposed weights): P pixels x G groups of 16 output channels stay
// in registers. A "unit" is what one multiply-add instruction takes of a pixel: 1 channel in f32, 2 in bf16.
template <class T>
inline constexpr int unit = 4 / sizeof(T);
AVX512_INLINE __m512 multiply_add(float, __m512 acc, __m512 w, const void* x) {
  return _mm512_fmadd_ps(w, _mm512_set1_ps(*(const float*)x), acc);
}
AVX512_INLINE __m512 multiply_add(bf16, __m512 acc, __m512 w, const void* x) {
  return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)_mm512_set1_epi32(*(const int*)x));
}

template <class T, int C, int P, int G, bool L, bool R>
AVX512_INLINE void block_row(__m512 (&acc)[P][G], const T* x, const float* w, long group) {
  auto tap = [&]<int kx>(std::integral_constant<int, kx>) AVX512 __attribute__((always_inline)) {
    const T* from = x + (kx - 1) * C;
    const float* weights = w + kx * (C / unit<T>)*16;
    for (int c = 0; c < C; c += unit<T>) {
      __m512 v[G];
      UNROLL for (int g = 0; g < G; ++g) v[g] = _mm512_loadu_ps(weights + g * group + c / unit<T> * 16);
      UNROLL for (int p = 0; p < P; ++p) {
        if ((L && kx == 0 && p == 0) || (R && kx == 2 && p == P - 1)) continue;
        UNROLL for (int g = 0; g < G; ++g) acc[p][g] = multiply_add(T{}, acc[p][g], v[g], from + p * C + c);
      }
    }
  };
  tap(std::integral_constant<int, 0>{}), tap(std::integral_constant<int, 1>{}), tap(std::integral_constant<int, 2>{});
}
template <class T, int C, int W, int P, int G, bool L, bool R, bool Stats>
AVX512 __attribute__((noinline)) void block(const T* x, const float* w, T* y, int row, __m512* stats) {
  constexpr long taps = 9L * (C / unit<T>)*16;
  __m512 acc[P][G];
  UNROLL for (int p = 0; p < P; ++p) UNROLL for (int g = 0; g < G; ++g) acc[p][g] = _mm512_setzero_ps();
  for (int ky = 0; ky < 3; ++ky)
    if (row + ky >= 1 && row + ky <= W) block_row<T, C, P, G, L, R>(acc, x + (ky - 1) * W * C, w + ky * taps / 3, taps);
  UNROLL for (int g = 0; g < G; ++g) {
    __m512 s = Stats ? stats[2 * g] : acc[0][g], q = Stats ? stats[2 * g + 1] : s;
    UNROLL for (int p = 0; p < P; ++p) {
      store(y + p * C + 16 * g, acc[p][g]);
      if (Stats) s = _mm512_add_ps(s, acc[p][g]), q = _mm512_fmadd_ps(acc[p][g], acc[p][g], q);
    }
    if (Stats) stats[2 * g] = s, stats[2 * g + 1] = q;
  }
}
// w: [co / 16][ky][kx][ci / unit][16][unit]. W is width and height.
template <class T, int C, int W, int P, int G, bool Stats>
AVX512 void direct_forward(const T* x, const float* w, T* y, int n, float* sums) {
  __m512 stats[C / 8];
  for (auto& s : stats) s = _mm512_setzero_ps();
  for (int row = 0; row < n * W; ++row)
    for (int g = 0; g < C / 16; g += G)
      for (int col = 0; col < W; col += P) {
        const long at = (long(row) * W + col) * C;
        const float* weights = w + g * 9 * (C / unit<T>)*16;
        auto* f = P == W         ? block<T, C, W, P, G, true, true, Stats>
                  : col == 0     ? block<T, C, W, P, G, true, false, Stats>
                  : col + P == W ? block<T, C, W, P, G, false, true, Stats>
                                 : block<T, C, W, P, G, false, false, Stats>;
        f(x + at, weights, y + at + 16 * g, row % W, stats + 2 * g);
      }
  for (int g = 0; g < C / 8; ++g) _mm512_storeu_ps(sums + 16 * g, stats[g]);
}

// Weight gradient: 8 input channels x 3 columns of taps x 16 output channels stay in registers while the loop reads an
// image. One step is 1 pixel in f32 and a pair of neighbouring pixels in bf16, interleaved before in x2 and d2.
template <class T, int C, int W>
AVX512 void interleave(const T* from, T* to, int first, int steps) {
  constexpr int u = unit<T>;
  for (int s = 0; s < steps; ++s)
    for (int c = 0; c < C; c += 16) {
      const int a = first + u * s, b = a + u - 1;
      auto bits = [&](int px) AVX512 {
        if (px < 0 || px >= W) return _mm512_setzero_si512();
        if constexpr (u == 1)
          return _mm512_loadu_si512(from + px * C + c);
        else
          return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(from + px * C + c)));
      };
      __m512i v = bits(a);
      if constexpr (u == 2) v = _mm512_or_si512(v, _mm512_slli_epi32(bits(b), 16));
      _mm512_storeu_si512(to + (s * C + c) * u, v);
    }
}
template <class T, int C, int W>
AVX512 void direct_weights(const T* x, const T* dy, float* dw, int n, T* x2, T* d2) {
  constexpr int u = unit<T>, steps = W / u, line = W * C, wide = (W + 2 + 2) * C, half = u == 2 ? line : 0;
  // A row of d2 has in f32 pixels -1..W, and in bf16 pairs (0,1)..(W-2,W-1), then pairs (-1,0)..(W-1,W).
  for (int image = 0; image < n; ++image, x += long(W) * line, dy += long(W) * line) {
    for (int r = 0; r < W; ++r) {
      if constexpr (u == 2)
        interleave<T, C, W>(x + r * line, x2 + r * line, 0, steps),
            interleave<T, C, W>(dy + r * line, d2 + r * (wide + half), 0, steps);
      interleave<T, C, W>(dy + r * line, d2 + r * (wide + half) + half, -1, u == 2 ? steps + 1 : W + 2);
    }
    const T* source = u == 2 ? x2 : x;
    for (int g = 0; g < C; g += 16)
      for (int ky = 0; ky < 3; ++ky)
        for (int c = 0; c < C; c += 8) {
          __m512 acc[3][8];
          auto at = [&](int k, int i) { return dw + (((ky * 3 + k) * C + c + i) * C + g); };
          UNROLL for (int k = 0; k < 3; ++k) UNROLL for (int i = 0; i < 8; ++i) acc[k][i] = _mm512_loadu_ps(at(k, i));
          for (int r = std::max(0, 1 - ky); r < std::min(W, W + 1 - ky); ++r) {
            const T* px = source + (r + ky - 1) * line + c * u;
            const T* d = d2 + r * (wide + half) + g * u;
            for (int s = 0; s < steps; ++s, px += C * u, d += C * u) {
              const __m512 d0 = _mm512_loadu_ps(d + half + (u == 2 ? C * u : 2 * C)),
                           d1 = _mm512_loadu_ps(d + (u == 2 ? 0 : C)), d2v = _mm512_loadu_ps(d + half);
              UNROLL for (int i = 0; i < 8; ++i) {
                acc[0][i] = multiply_add(T{}, acc[0][i], d0, px + i * u);
                acc[1][i] = multiply_add(T{}, acc[1][i], d1, px + i * u);
                acc[2][i] = multiply_add(T{}, acc[2][i], d2v, px + i * u);
              }
            }
          }
          UNROLL for (int k = 0; k < 3; ++k) UNROLL for (int i = 0; i < 8; ++i) _mm512_storeu_ps(at(k, i), acc[k][i]);
        }
  }
}

inline float widen(float v) { return v; }
inline float widen(bf16 v) {
  const std::uint32_t bits = std::uint32_t(v) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline void narrow(float v, float& to) { to = v; }
inline void narrow(float v, bf16& to) {
  std::uint32_t bits;
  std::memcpy(&bits, &v, 4);
  to = bf16(bits >> 16);
}

template <class T, int C, int W>
struct Direct {
  int n;
  Buffer x{sizeof(T) * n * W * W * C}, y{sizeof(T) * n * W * W * C}, w{sizeof(T) * 9 * C * C}, dw{4 * 9 * C * C, 0},
      sums{4 * 2 * C};
  Buffer x2{sizeof(T) * W * W * C}, d2{sizeof(T) * W * (2 * W + 4) * C};
  template <int P, int G, bool S>
  void forward() {
    direct_forward<T, C, W, P, G, S>(x.template as<T>(), w.template as<float>(), y.template as<T>(), n,
                                     sums.as<float>());
  }
  void weights() {
    direct_weights<T, C, W>(x.template as<T>(), y.template as<T>(), dw.as<float>(), n, x2.template as<T>(),
                            d2.template as<T>());
  }
};

template <class T, int C, int W, int P, int G>
void check_direct() {  // compares with simple loops and prints the largest relative error
  Direct<T, C, W> d{2};
  unsigned seed = 1;
  auto fill = [&](const Buffer& b, int count) {
    for (int i = 0; i < count; ++i)
      narrow(float((seed = seed * 1664525 + 1013904223) >> 16 & 255) / 256 - 0.5f, b.as<T>()[i]);
  };
  const int count = 2 * W * W * C;
  fill(d.x, count), fill(d.w, 9 * C * C);
  d.template forward<P, G, true>();
  const T *x = d.x.template as<T>(), *w = d.w.template as<T>(), *y = d.y.template as<T>();
  double worst = 0, largest = 0, worst_dw = 0, largest_dw = 0;
  std::vector<double> dw(9 * C * C);
  std::vector<T> dy(y, y + count);
  for (int r = 0; r < 2 * W; ++r)
    for (int col = 0; col < W; ++col)
      for (int o = 0; o < C; ++o) {
        double sum = 0;
        for (int k = 0; k < 9; ++k) {
          const int yy = r % W + k / 3 - 1, xx = col + k % 3 - 1;
          if (yy < 0 || yy >= W || xx < 0 || xx >= W) continue;
          for (int c = 0; c < C; ++c) {
            const double v = widen(x[((r + k / 3 - 1) * W + xx) * C + c]);
            sum += v * widen(w[(((o / 16 * 9 + k) * (C / unit<T>)+c / unit<T>)*16 + o % 16) * unit<T> + c % unit<T>]);
            dw[(k * C + c) * C + o] += v * widen(dy[(r * W + col) * C + o]);
          }
        }
        worst = std::max(worst, std::abs(sum - widen(y[(r * W + col) * C + o]))),
        largest = std::max(largest, std::abs(sum));
      }
  d.weights();
  for (int i = 0; i < 9 * C * C; ++i)
    worst_dw = std::max(worst_dw, std::abs(dw[i] - d.dw.template as<float>()[i])),
    largest_dw = std::max(largest_dw, std::abs(dw[i]));
  std::printf("  errors %.1e %.1e", worst / largest, worst_dw / largest_dw);
}

template <class T, int C, int W, int P, int G>
void bench_direct(double top) {
  std::printf("%3d>%3d @%-2d %s block %dx%d", C, C, W, sizeof(T) == 4 ? "f32 " : "bf16", P, G * 16);
  check_direct<T, C, W, P, G>();
  for (const char* what : {"fwd", "fwd+statistics", "bwd_w"}) {
    std::printf("  %s", what);
    for (const auto& [n, threads] : {std::pair{1, 1}, {4, 1}, {16, 1}, {4, 2}}) {
      auto make = [&, n = n]() -> Job {
        auto d = std::make_shared<Direct<T, C, W>>(n);
        if (what[0] == 'b') return Job([=] { d->weights(); });
        if (what[3]) return Job([=] { d->template forward<P, G, true>(); });
        return Job([=] { d->template forward<P, G, false>(); });
      };
      const double g = 18.0 * n * W * W * C * C / timed(threads, make) * 1e-9;
      std::printf(" %s%.0f (%.0f%%)", threads == 2 ? "t2:" : "", g, 100 * g / top);
    }
  }
  std::printf("\n");
}
