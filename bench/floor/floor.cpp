// How fast can two cores train small ResNets at best? Measures the pieces that a training step is made of: oneDNN
// convolutions on chunks of a batch, fused batch-norm passes, and hand-written AVX-512 convolutions for few channels.
//
//   g++ -std=c++20 -O2 floor.cpp -o /tmp/floor -fopenmp -ldnnl
//   /tmp/floor peak | conv r20|r18|stem f32|bf16 | split | bn | direct
//
// Every number is the best of several trials. "t2" columns run the same work in two threads on separate data.
#include <dnnl.hpp>
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define AVX512_INLINE AVX512 __attribute__((always_inline)) inline
#define UNROLL _Pragma("GCC unroll 32")

using Job = std::function<void()>;
using bf16 = std::uint16_t;

// ---- timing --------------------------------------------------------------------------------------------------------
double seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Seconds per call, best of several trials, with `make()`'s job running in each of `threads` threads at once. The clock is
// the thread's CPU time, so that other programs on the same cores disturb less; with an OpenMP team it is the wall clock.
double timed(int threads, const std::function<Job()>& make, int omp = 1, double budget = 0.008, int trials = 4) {
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
  template <class T> T* as() const { return static_cast<T*>(data.get()); }
  struct Free { void operator()(void* p) const { std::free(p); } };
  std::unique_ptr<void, Free> data;
};
using Shared = std::shared_ptr<Buffer>;
Shared buffer(std::size_t bytes, int fill = 0x3c) { return std::make_shared<Buffer>(bytes, fill); }

// ---- 0. peak -------------------------------------------------------------------------------------------------------
template <class T> AVX512 __attribute__((noinline)) float peak_loop(long n) {
  __m512 acc[20];
  const __m512 a = _mm512_set1_ps(0.5f);
  UNROLL for (auto& v : acc) v = a;
  for (long i = 0; i < n; ++i) {
    UNROLL for (auto& v : acc) {
      if constexpr (sizeof(T) == 4) v = _mm512_fmadd_ps(v, a, a);
      else v = _mm512_dpbf16_ps(v, (__m512bh)a, (__m512bh)a);
      asm volatile("" : "+v"(v));
    }
  }
  __m512 sum = acc[0];
  UNROLL for (auto& v : acc) sum = _mm512_add_ps(sum, v);
  return _mm512_reduce_add_ps(sum);
}

template <class T> double peak(int threads) {
  constexpr long n = 100000;
  static volatile float sink;
  const double t = timed(threads, [] { return Job([] { sink = peak_loop<T>(n); }); }, 1, 0.02, 6);
  return n * 20.0 * (sizeof(T) == 4 ? 32 : 64) / t * 1e-9;
}

// ---- 1. oneDNN convolutions ----------------------------------------------------------------------------------------
struct Shape {
  int ci, co, size, kernel, stride;
  double flops(int n) const { return 2.0 * n * ci * co * kernel * kernel * (size / stride) * (size / stride); }
};
enum Direction { forward, backward_data, backward_weights };
const char* direction_name[] = {"fwd", "bwd_d", "bwd_w"};

Job onednn(Shape s, Direction dir, bool half, bool blocked, int n, std::string* info = nullptr) {
  using namespace dnnl;
  using dt = memory::data_type;
  using tag = memory::format_tag;
  const dt type = half ? dt::bf16 : dt::f32;
  const int out = s.size / s.stride, pad = s.kernel / 2;
  auto layout = [&](int c) { return !blocked ? tag::nhwc : c < 16 ? tag::nchw : tag::nChw16c; };
  const memory::desc x({n, s.ci, s.size, s.size}, type, layout(s.ci)), y({n, s.co, out, out}, type, layout(s.co));
  const memory::desc w({s.co, s.ci, s.kernel, s.kernel}, type, tag::any);
  const memory::desc dw({s.co, s.ci, s.kernel, s.kernel}, dt::f32, tag::any);
  const memory::dims st{s.stride, s.stride}, side{pad, pad};
  engine eng(engine::kind::cpu, 0);
  stream str(eng);
  const auto algo = algorithm::convolution_direct;
  try {
    convolution_forward::primitive_desc f({prop_kind::forward_training, algo, x, w, y, st, side, side}, eng);
    auto run = [=](auto prim, int a, memory::desc am, int b, memory::desc bm, int c, memory::desc cm) mutable {
      std::vector<Shared> keep;
      std::unordered_map<int, memory> args;
      for (auto [id, md] : {std::pair{a, am}, {b, bm}, {c, cm}}) {
        keep.push_back(buffer(md.get_size()));
        args.emplace(id, memory(md, eng, keep.back()->as<void>()));
      }
      return Job([=, keep = std::move(keep)]() mutable { prim.execute(str, args), str.wait(); });
    };
    if (dir == forward) {
      if (info) *info = f.impl_info_str();
      return run(dnnl::convolution_forward(f), DNNL_ARG_SRC, x, DNNL_ARG_WEIGHTS, f.weights_desc(), DNNL_ARG_DST, y);
    }
    if (dir == backward_data) {
      convolution_backward_data::primitive_desc d({algo, x, w, y, st, side, side}, eng, f);
      if (info) *info = d.impl_info_str();
      return run(dnnl::convolution_backward_data(d), DNNL_ARG_DIFF_DST, y, DNNL_ARG_WEIGHTS, d.weights_desc(), DNNL_ARG_DIFF_SRC, x);
    }
    convolution_backward_weights::primitive_desc d({algo, x, dw, y, st, side, side}, eng, f);
    if (info) *info = d.impl_info_str();
    return run(dnnl::convolution_backward_weights(d), DNNL_ARG_SRC, x, DNNL_ARG_DIFF_DST, y, DNNL_ARG_DIFF_WEIGHTS, d.diff_weights_desc());
  } catch (const dnnl::error& e) {
    if (info) *info = std::string("unavailable: ") + e.what();
    return {};
  }
}

void bench_conv(const std::vector<Shape>& shapes, bool half, int batch) {
  const double top = half ? peak<bf16>(1) : peak<float>(1);
  std::printf("peak %.0f GFLOP/s; columns: GFLOP/s per core\n%-18s %-4s %-5s", top, "shape", "lay", "dir");
  for (int n : {1, 2, 4, 8, 16, 32}) std::printf(" %5d", n);
  std::printf("  best%%  t2@4 t2@16 omp2@%d  implementation\n", batch);
  for (const Shape& s : shapes) {
    for (const bool blocked : {false, true}) {
      for (int dir = 0; dir < 3; ++dir) {
        const auto d = Direction(dir);
        if (d == backward_data && s.ci <= 16 && s.co == 16 && s.ci != 16) continue;  // the stem needs no input gradient
        std::string info;
        omp_set_num_threads(1);
        const bool ok = bool(onednn(s, d, half, blocked, 4, &info));
        std::printf("%3d>%3d k%d s%d @%-3d %-4s %-5s", s.ci, s.co, s.kernel, s.stride, s.size, blocked ? "16c" : "nhwc", direction_name[dir]);
        if (!ok || info.find("ref") != std::string::npos) {
          std::printf("  *** %s\n", info.c_str());
          continue;
        }
        auto rate = [&](int n, int threads, int omp) {
          return s.flops(n) / timed(threads, [&] { return onednn(s, d, half, blocked, n); }, omp, 0.006) * 1e-9;
        };
        double best = 0;
        for (int n : {1, 2, 4, 8, 16, 32}) {
          const double g = rate(n, 1, 1);
          best = std::max(best, g);
          std::printf(" %5.0f", g);
        }
        std::printf("  %3.0f%%  %5.0f %5.0f %6.0f    %s\n", 100 * best / top, rate(4, 2, 1), rate(16, 2, 1), rate(batch, 1, 2) / 2, info.c_str());
        std::fflush(stdout);
      }
    }
  }
}

// ---- 2. weight gradient of a whole batch, split over output channels instead of over images -------------------------
void bench_split() {
  std::printf("weight gradient, GFLOP/s per core, 2 threads. images: chunks of the batch, partial sums added; channels: a "
              "quarter of the output channels, slice of diff_dst copied\n");
  for (const Shape s : {Shape{256, 256, 8, 3, 1}, Shape{512, 512, 4, 3, 1}}) {
    for (const bool half : {false, true}) {
      std::printf("%d>%d @%d %s:", s.ci, s.co, s.size, half ? "bf16" : "f32 ");
      for (const int n : {4, 8, 16, 32}) {
        const long count = 9L * s.ci * s.co;
        auto make = [&] {
          Job conv = onednn(s, backward_weights, half, false, n);
          auto part = buffer(4 * count), sum = buffer(4 * count);
          return Job([=] {
            conv();
            float *a = sum->as<float>(), *b = part->as<float>();
            for (long i = 0; i < count; ++i) a[i] += b[i];
          });
        };
        std::printf("  images/%d %.0f", n, s.flops(n) / timed(2, make) * 1e-9);
      }
      const Shape slice{s.ci, s.co / 4, s.size, 3, 1};
      for (const int n : {32, 64}) {
        auto make = [&] {
          Job conv = onednn(slice, backward_weights, half, false, n);
          const std::size_t bytes = half ? 2 : 4, rows = std::size_t(n) * s.size * s.size;
          auto from = buffer(rows * s.co * bytes), to = buffer(rows * slice.co * bytes);
          return Job([=] {
            for (std::size_t r = 0; r < rows; ++r)
              std::memcpy(to->as<char>() + r * slice.co * bytes, from->as<char>() + r * s.co * bytes, slice.co * bytes);
            conv();
          });
        };
        std::printf("  channels/%d %.0f", n, slice.flops(n) / timed(2, make) * 1e-9);
      }
      std::printf("\n");
    }
  }
}

// ---- 3. batch-norm passes, NHWC. One loop for 16, 32 and 64 channels: per-channel vectors repeat every 64 elements ---
AVX512_INLINE __m512 load(const float* p) { return _mm512_loadu_ps(p); }
AVX512_INLINE __m512 load(const bf16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
AVX512_INLINE void store(float* p, __m512 v) { _mm512_storeu_ps(p, v); }
AVX512_INLINE void store(bf16* p, __m512 v) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v)); }

template <class T> AVX512 void bn_statistics(const T* x, long n, float* sum, float* squares) {
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
template <class T> AVX512 void bn_apply_relu(const T* x, T* y, long n, const float* a, const float* b) {
  __m512 va[4], vb[4];
  UNROLL for (int k = 0; k < 4; ++k) va[k] = load(a + 16 * k), vb[k] = load(b + 16 * k);
  for (long i = 0; i < n; i += 64)
    UNROLL for (int k = 0; k < 4; ++k)
      store(y + i + 16 * k, _mm512_max_ps(_mm512_fmadd_ps(load(x + i + 16 * k), va[k], vb[k]), _mm512_setzero_ps()));
}
// The rectifier's mask comes from x (x * a + b > 0), so the output is not read again.
template <class T> AVX512 void bn_reduce(const T* x, const T* dy, long n, const float* a, const float* b, float* sum, float* dot) {
  __m512 va[4], vb[4], s[4], d[4];
  UNROLL for (int k = 0; k < 4; ++k) va[k] = load(a + 16 * k), vb[k] = load(b + 16 * k), s[k] = d[k] = _mm512_setzero_ps();
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
template <class T> AVX512 void bn_input_gradient(const T* x, T* dy, long n, const float* a, const float* b, const float* c, const float* e) {
  __m512 va[4], vb[4], vc[4], ve[4];
  UNROLL for (int k = 0; k < 4; ++k) va[k] = load(a + 16 * k), vb[k] = load(b + 16 * k), vc[k] = load(c + 16 * k), ve[k] = load(e + 16 * k);
  for (long i = 0; i < n; i += 64) {
    UNROLL for (int k = 0; k < 4; ++k) {
      const __m512 v = load(x + i + 16 * k);
      const __mmask16 on = _mm512_cmp_ps_mask(_mm512_fmadd_ps(v, va[k], vb[k]), _mm512_setzero_ps(), _CMP_GT_OQ);
      const __m512 g = _mm512_maskz_mov_ps(on, load(dy + i + 16 * k));
      store(dy + i + 16 * k, _mm512_fmadd_ps(g, va[k], _mm512_fmadd_ps(v, vc[k], ve[k])));
    }
  }
}

template <class T> void bench_bn(const char* type) {
  const char* names[] = {"statistics", "apply+relu", "bwd reduce", "bwd apply (in place)"};
  const double streams[] = {1, 2, 2, 3};
  for (const auto& [where, bytes] : {std::pair{"256 KB", 256L << 10}, {"512 KB", 512L << 10}, {"8 MB", 8L << 20}, {"64 MB", 64L << 20}}) {
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
        std::printf("  t%d: %.3f ns/element %5.1f GB/s per core", threads, t / n * 1e9, streams[pass] * bytes / t * 1e-9);
      }
      std::printf("\n");
    }
  }
}

// ---- 4. direct 3x3 convolutions of our own, NHWC, stride 1 ----------------------------------------------------------
// Forward (and the input gradient, with flipped and transposed weights): P pixels x G groups of 16 output channels stay
// in registers. A "unit" is what one multiply-add instruction takes of a pixel: 1 channel in f32, 2 in bf16.
template <class T> inline constexpr int unit = 4 / sizeof(T);
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
    const float* weights = w + kx * (C / unit<T>) * 16;
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
  constexpr long taps = 9L * (C / unit<T>) * 16;
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
template <class T, int C, int W, int P, int G, bool Stats> AVX512 void direct_forward(const T* x, const float* w, T* y, int n, float* sums) {
  __m512 stats[C / 8];
  for (auto& s : stats) s = _mm512_setzero_ps();
  for (int row = 0; row < n * W; ++row)
    for (int g = 0; g < C / 16; g += G)
      for (int col = 0; col < W; col += P) {
        const long at = (long(row) * W + col) * C;
        const float* weights = w + g * 9 * (C / unit<T>) * 16;
        auto* f = P == W ? block<T, C, W, P, G, true, true, Stats> : col == 0 ? block<T, C, W, P, G, true, false, Stats>
                : col + P == W ? block<T, C, W, P, G, false, true, Stats> : block<T, C, W, P, G, false, false, Stats>;
        f(x + at, weights, y + at + 16 * g, row % W, stats + 2 * g);
      }
  for (int g = 0; g < C / 8; ++g) _mm512_storeu_ps(sums + 16 * g, stats[g]);
}

// Weight gradient: 8 input channels x 3 columns of taps x 16 output channels stay in registers while an image streams by.
// One step is 1 pixel in f32 and a pair of neighbouring pixels in bf16, interleaved beforehand into x2 and d2.
template <class T, int C, int W> AVX512 void interleave(const T* from, T* to, int first, int steps) {
  constexpr int u = unit<T>;
  for (int s = 0; s < steps; ++s)
    for (int c = 0; c < C; c += 16) {
      const int a = first + u * s, b = a + u - 1;
      auto bits = [&](int px) AVX512 {
        if (px < 0 || px >= W) return _mm512_setzero_si512();
        if constexpr (u == 1) return _mm512_loadu_si512(from + px * C + c);
        else return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(from + px * C + c)));
      };
      __m512i v = bits(a);
      if constexpr (u == 2) v = _mm512_or_si512(v, _mm512_slli_epi32(bits(b), 16));
      _mm512_storeu_si512(to + (s * C + c) * u, v);
    }
}
template <class T, int C, int W>
AVX512 void direct_weights(const T* x, const T* dy, float* dw, int n, T* x2, T* d2) {
  constexpr int u = unit<T>, steps = W / u, line = W * C, wide = (W + 2 + 2) * C, half = u == 2 ? line : 0;
  // d2 row: f32: pixels -1..W; bf16: pairs (0,1)..(W-2,W-1), then pairs (-1,0)..(W-1,W).
  for (int image = 0; image < n; ++image, x += long(W) * line, dy += long(W) * line) {
    for (int r = 0; r < W; ++r) {
      if constexpr (u == 2) interleave<T, C, W>(x + r * line, x2 + r * line, 0, steps), interleave<T, C, W>(dy + r * line, d2 + r * (wide + half), 0, steps);
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
              const __m512 d0 = _mm512_loadu_ps(d + half + (u == 2 ? C * u : 2 * C)), d1 = _mm512_loadu_ps(d + (u == 2 ? 0 : C)), d2v = _mm512_loadu_ps(d + half);
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

float widen(float v) { return v; }
float widen(bf16 v) { const std::uint32_t bits = std::uint32_t(v) << 16; float f; std::memcpy(&f, &bits, 4); return f; }
void narrow(float v, float& to) { to = v; }
void narrow(float v, bf16& to) { std::uint32_t bits; std::memcpy(&bits, &v, 4); to = bf16(bits >> 16); }

template <class T, int C, int W> struct Direct {
  int n;
  Buffer x{sizeof(T) * n * W * W * C}, y{sizeof(T) * n * W * W * C}, w{sizeof(T) * 9 * C * C}, dw{4 * 9 * C * C, 0}, sums{4 * 2 * C};
  Buffer x2{sizeof(T) * W * W * C}, d2{sizeof(T) * W * (2 * W + 4) * C};
  template <int P, int G, bool S> void forward() { direct_forward<T, C, W, P, G, S>(x.template as<T>(), w.template as<float>(), y.template as<T>(), n, sums.as<float>()); }
  void weights() { direct_weights<T, C, W>(x.template as<T>(), y.template as<T>(), dw.as<float>(), n, x2.template as<T>(), d2.template as<T>()); }
};

template <class T, int C, int W, int P, int G> void check_direct() {  // against obvious loops: largest relative error
  Direct<T, C, W> d{2};
  unsigned seed = 1;
  auto fill = [&](const Buffer& b, int count) { for (int i = 0; i < count; ++i) narrow(float((seed = seed * 1664525 + 1013904223) >> 16 & 255) / 256 - 0.5f, b.as<T>()[i]); };
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
            sum += v * widen(w[(((o / 16 * 9 + k) * (C / unit<T>) + c / unit<T>) * 16 + o % 16) * unit<T> + c % unit<T>]);
            dw[(k * C + c) * C + o] += v * widen(dy[(r * W + col) * C + o]);
          }
        }
        worst = std::max(worst, std::abs(sum - widen(y[(r * W + col) * C + o]))), largest = std::max(largest, std::abs(sum));
      }
  d.weights();
  for (int i = 0; i < 9 * C * C; ++i) worst_dw = std::max(worst_dw, std::abs(dw[i] - d.dw.template as<float>()[i])), largest_dw = std::max(largest_dw, std::abs(dw[i]));
  std::printf("  errors %.1e %.1e", worst / largest, worst_dw / largest_dw);
}

template <class T, int C, int W, int P, int G> void bench_direct(double top) {
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

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "peak", net = argc > 2 ? argv[2] : "r20";
  const bool half = argc > 3 && std::string(argv[3]) == "bf16";
  if (what == "peak")
    std::printf("f32 %.0f, 2 threads %.0f; bf16 %.0f, 2 threads %.0f GFLOP/s per core\n", peak<float>(1), peak<float>(2), peak<bf16>(1), peak<bf16>(2));
  if (what == "conv" && net == "r20")
    bench_conv({{16, 16, 32, 3, 1}, {16, 32, 32, 3, 2}, {32, 32, 16, 3, 1}, {32, 64, 16, 3, 2}, {64, 64, 8, 3, 1}, {16, 32, 32, 1, 2}, {32, 64, 16, 1, 2}}, half, 128);
  if (what == "conv" && net == "stem")
    bench_conv({{3, 16, 32, 3, 1}, {4, 16, 32, 3, 1}, {8, 16, 32, 3, 1}, {3, 64, 32, 3, 1}, {4, 64, 32, 3, 1}}, half, 128);
  if (what == "conv" && net == "r18")
    bench_conv({{64, 64, 32, 3, 1}, {64, 128, 32, 3, 2}, {128, 128, 16, 3, 1}, {128, 256, 16, 3, 2}, {256, 256, 8, 3, 1}, {256, 512, 8, 3, 2},
                {512, 512, 4, 3, 1}, {64, 128, 32, 1, 2}, {128, 256, 16, 1, 2}, {256, 512, 8, 1, 2}}, half, 64);
  if (what == "split") bench_split();
  if (what == "bn") bench_bn<float>("f32 "), bench_bn<bf16>("bf16");
  if (what == "direct") {
    const double f = peak<float>(1), b = peak<bf16>(1);
    bench_direct<float, 16, 32, 16, 1>(f), bench_direct<float, 32, 16, 8, 2>(f), bench_direct<float, 32, 16, 16, 1>(f), bench_direct<float, 64, 8, 8, 2>(f);
    bench_direct<bf16, 16, 32, 16, 1>(b), bench_direct<bf16, 32, 16, 8, 2>(b), bench_direct<bf16, 32, 16, 16, 1>(b), bench_direct<bf16, 64, 8, 8, 2>(b);
  }
}
