// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/amx/registers.hpp>
#include <tutti/engine/cpu/simd.hpp>
#include <tutti/graph/ops.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Weight gradients of convolutions as matrix products: dw [outputs, inputs] of one position of the window is dy^T x
// over all pixels. The operands are copied, one block of pixels after the other, into columns of 16 channels. If dy is
// f32 and all its channels are used, it is read in place instead. A tile of 8 outputs by 32 inputs is kept in
// registers. There is code for AVX-512; in bf16 it uses products of pairs. On processors with AMX, bf16 uses tiles of
// 32 outputs by 32 inputs, for which blocks of the outputs' columns are transposed.
namespace tutti::cpu {

template <class T>
struct WeightGradientArgs {
  op::Window window;
  std::int64_t rows = 0;
  std::int64_t h = 0, w = 0, channels = 0;         // of x, NHWC
  std::int64_t out_h = 0, out_w = 0, outputs = 0;  // of dy, NHWC
  const T* x = nullptr;
  const T* dy = nullptr;
  std::int64_t first_input = 0, inputs = 0;  // the part of the gradient that is computed
  std::int64_t first_output = 0, part_outputs = 0;
  float* dw = nullptr;  // [part_outputs][position in the window][inputs]; the first two have these steps:
  std::int64_t dw_output = 0, dw_place = 0;
  bool add = false;          // add to the present values of dw
  bool amx = false;          // use tiles of AMX, in bf16; requires detect_amx()
  float* columns = nullptr;  // weight_gradient_floats() floats, aligned to 64 bytes
};

namespace detail {

inline constexpr std::int64_t gradient_block = 128;  // vectors of a column: pixels, or pairs of them in bf16
inline constexpr std::int64_t column_floats =
    (gradient_block + 1) * 16;  // one more, so that columns do not share cache sets
inline constexpr int tile_outputs = 8, tile_columns = 2;

}  // namespace detail

// Returns whether there is a kernel for `isa`. Its inputs and outputs must fill whole columns.
template <class T>
[[nodiscard]] bool has_weight_gradient(Isa isa, std::int64_t inputs, std::int64_t outputs) {
  return (std::is_same_v<T, float> ? isa == Isa::avx512 || isa == Isa::avx512_bf16 : isa == Isa::avx512_bf16) &&
         inputs % 16 == 0 && outputs % 16 == 0;
}
[[nodiscard]] inline std::int64_t weight_gradient_floats(std::int64_t inputs, std::int64_t outputs) {
  return (inputs + outputs) / 16 * detail::column_floats;
}

#if defined(__x86_64__)

namespace detail {

// Copies the pixels' channels [0, 16 * columns) to columns. from[k] is a pixel, or null for one of zeros.
template <Isa I>
TUTTI_INLINE void to_columns(const float* const* from, std::int64_t pixels, std::int64_t columns, float* to) {
  for (std::int64_t k = 0; k < pixels; ++k, to += 16)
    for (std::int64_t c = 0; c < columns; ++c) {
      F<I> v = F<I>{};
      if (from[k] != nullptr) load<I>(v, from[k] + 16 * c);
      store<I>(to + c * column_floats, v);
    }
}
// Copies pairs of pixels, interleaved.
template <Isa I>
TUTTI_INLINE void to_columns(const bf16* const* from, std::int64_t pixels, std::int64_t columns, float* to) {
  using U = typename Vec<I>::U;
  static constexpr bf16 zeros[32] = {};
  for (std::int64_t k = 0; k < pixels; k += 2, to += 16) {
    const bool second = k + 1 < pixels && from[k + 1] != nullptr;
    const bf16* a = from[k] != nullptr ? from[k] : static_cast<const bf16*>(zeros);
    const bf16* b = second ? from[k + 1] : static_cast<const bf16*>(zeros);
    const std::int64_t a_step = from[k] != nullptr ? 16 : 0, b_step = second ? 16 : 0;
    std::int64_t c = 0;
#if !defined(__clang__)
    using Wide = std::uint16_t __attribute__((vector_size(64)));
    const Wide low{0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                   8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const Wide high = low + 16;
    for (; c + 2 <= columns; c += 2) {
      Wide x, y;
      read(x, a + c * a_step);
      read(y, b + c * b_step);
      store<I>(to + c * column_floats, (F<I>)__builtin_shuffle(x, y, low));
      store<I>(to + (c + 1) * column_floats, (F<I>)__builtin_shuffle(x, y, high));
    }
#endif
    for (; c < columns; ++c) {
      typename Vec<I>::Half x, y;
      read(x, a + c * a_step);
      read(y, b + c * b_step);
      store<I>(to + c * column_floats, (F<I>)(__builtin_convertvector(x, U) | (__builtin_convertvector(y, U) << 16)));
    }
  }
}

// sums += a b, of pairs in bf16.
template <Isa I, class T>
TUTTI_INLINE void multiply_add(F<I>& sum, const F<I>& a, const F<I>& b) {
  if constexpr (std::is_same_v<T, bf16>) {
#if defined(__clang__)
    // Clang's asm accepts no registers wider than the target of the file has.
    for (std::size_t i = 0; i < sizeof(F<I>) / sizeof(float); ++i) {
      const auto x = std::bit_cast<std::uint32_t>(float{a[i]}), y = std::bit_cast<std::uint32_t>(float{b[i]});
      sum[i] += std::bit_cast<float>(x << 16) * std::bit_cast<float>(y << 16) +
                std::bit_cast<float>(x & 0xFFFF0000U) * std::bit_cast<float>(y & 0xFFFF0000U);
    }
#else
    F<I> s = sum;  // a copy: an array stays in memory if its elements are operands of asm
    asm("vdpbf16ps %2, %1, %0" : "+v"(s) : "v"(a), "v"(b));
    sum = s;
#endif
  } else {
    sum += a * b;
  }
}

// 8 floats (or pairs) of outputs; those of the next pixel (or pair) are `step` floats further.
struct TileOutputs {
  const float* from;
  std::int64_t step;
};
// `inputs` are N columns.
template <Isa I, class T, int N>
TUTTI_INLINE void gradient_tile(TileOutputs outputs, const float* inputs, std::int64_t n, float* dw, std::int64_t step,
                                bool add) {
  F<I> sum[tile_outputs][N];
#pragma GCC unroll 8
  for (int i = 0; i < tile_outputs; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) sum[i][j] = F<I>{};
  for (std::int64_t k = 0; k < n; ++k, outputs.from += outputs.step, inputs += 16) {
    F<I> b[N];
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) load<I>(b[j], inputs + j * column_floats);
#pragma GCC unroll 8
    for (int i = 0; i < tile_outputs; ++i) {
      // As integers: an addition of floats would change the bits of pairs.
      const F<I> a = (F<I>)(typename Vec<I>::U{} + std::bit_cast<std::uint32_t>(outputs.from[i]));
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) multiply_add<I, T>(sum[i][j], a, b[j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < tile_outputs; ++i, dw += step)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      F<I> before = F<I>{};
      if (add) load<I>(before, static_cast<const float*>(dw + 16 * j));
      store<I>(dw + 16 * j, before + sum[i][j]);
    }
}

#ifdef TUTTI_HAS_AMX
// The same for M columns of outputs, in transposed blocks, and N of inputs, over n blocks of 16 pairs.
template <int M, int N>
TUTTI_INLINE void gradient_tiles(const float* outputs, const float* inputs, std::int64_t n, float* dw,
                                 std::int64_t step, bool add) {
  constexpr std::int64_t bytes = 64, tile = amx::side * amx::side;
  const std::int64_t row = step * 4, below = amx::side * step;
  if (add) {
    amx::load_tile<0>(dw, row);
    if constexpr (N == 2) amx::load_tile<1>(dw + amx::side, row);
    if constexpr (M == 2) amx::load_tile<2>(dw + below, row);
    if constexpr (M == 2 && N == 2) amx::load_tile<3>(dw + below + amx::side, row);
  } else {
    amx::zero_tile<0>();
    amx::zero_tile<1>();
    amx::zero_tile<2>();
    amx::zero_tile<3>();
  }
  for (std::int64_t k = 0; k < n; ++k, outputs += tile, inputs += tile) {
    amx::load_tile<4>(outputs, bytes);
    amx::load_tile<6>(inputs, bytes);
    if constexpr (N == 2) amx::load_tile<7>(inputs + column_floats, bytes);
    if constexpr (M == 2) amx::load_tile<5>(outputs + column_floats, bytes);
    amx::multiply_tiles<0, 4, 6>();
    if constexpr (N == 2) amx::multiply_tiles<1, 4, 7>();
    if constexpr (M == 2) amx::multiply_tiles<2, 5, 6>();
    if constexpr (M == 2 && N == 2) amx::multiply_tiles<3, 5, 7>();
  }
  amx::store_tile<0>(dw, row);
  if constexpr (N == 2) amx::store_tile<1>(dw + amx::side, row);
  if constexpr (M == 2) amx::store_tile<2>(dw + below, row);
  if constexpr (M == 2 && N == 2) amx::store_tile<3>(dw + below + amx::side, row);
}
#endif

// A block of pixels and a position in the window.
struct GradientStep {
  std::int64_t first, count;
  int place;
};
// Finds the addresses of these pixels' inputs; null if outside.
template <class T>
inline void find_inputs(const WeightGradientArgs<T>& g, const GradientStep& at, const T** from) {
  const op::Window& o = g.window;
  const int r = at.place / o.kernel_w - o.padding, s = at.place % o.kernel_w - o.padding;
  std::int64_t j = at.first % g.out_w, i = at.first / g.out_w % g.out_h, n = at.first / (g.out_w * g.out_h);
  for (std::int64_t k = 0; k < at.count; ++k) {
    const std::int64_t h = i * o.stride + r, v = j * o.stride + s;
    const bool outside = h < 0 || v < 0 || h >= g.h || v >= g.w;
    from[k] = outside ? nullptr : g.x + ((n * g.h + h) * g.w + v) * g.channels + g.first_input;
    if (++j < g.out_w) continue;
    j = 0;
    if (++i < g.out_h) continue;
    i = 0;
    ++n;
  }
}
template <class T>
TUTTI_INLINE void ask_for(const T* from, std::int64_t channels) {
  for (std::int64_t c = 0; c < channels; c += 64 / static_cast<std::int64_t>(sizeof(T)))
    __builtin_prefetch(from + c, 0, 2);
}

template <Isa I, class T, bool Amx = false>
TUTTI_INLINE void weight_gradient_body(const WeightGradientArgs<T>& g) {
  constexpr bool pairs = std::is_same_v<T, bf16>;
  constexpr std::int64_t at_once = pairs ? 2 : 1, block = gradient_block * at_once;
  const int places = g.window.kernel_h * g.window.kernel_w;
  const std::int64_t pixels = g.rows * g.out_h * g.out_w;
  // Blocks of pixels are multiples of a pair, or of a tile. Tiles end with pixels of zeros.
  constexpr std::int64_t multiple = Amx ? 32 : 2;
  const auto filled = [&](std::int64_t n) { return (n + multiple - 1) / multiple * multiple; };
  const std::int64_t blocks = (pixels + block - 1) / block, size = filled((pixels + blocks - 1) / blocks);
  // Copies parts of pixels: at a distance of a power of two, they would evict each other from the cache.
  const bool copies = pairs || g.part_outputs < g.outputs;
  float* const output_columns = g.columns;
  float* const input_columns = g.columns + g.part_outputs / 16 * column_floats;
  constexpr std::int64_t tile_rows = Amx ? 32 : tile_outputs;
  const std::int64_t tiles =
      (g.inputs / 16 + tile_columns - 1) / tile_columns * ((g.part_outputs + tile_rows - 1) / tile_rows);
  const T* inputs_of[2][block];
  GradientStep at{}, next{};
  for (std::int64_t n = 0; n <= blocks * places; ++n) {
    at = next;
    next.first = n / places * size;
    next.count = std::clamp<std::int64_t>(pixels - next.first, 0, size);
    next.place = static_cast<int>(n % places);
    const T** const next_inputs = inputs_of[n % 2];
    find_inputs(g, next, next_inputs);
    if constexpr (Amx) std::fill(next_inputs + next.count, next_inputs + filled(next.count), nullptr);
    if (n == 0) continue;
    const T* const* const inputs = inputs_of[(n - 1) % 2];
    const T* const dy = g.dy + at.first * g.outputs + g.first_output;
    const T* outputs[block];
    const bool new_outputs = copies && at.place == 0;
    const std::int64_t copied = Amx ? filled(at.count) : at.count;
    for (std::int64_t k = 0; new_outputs && k < copied; ++k) outputs[k] = k < at.count ? dy + k * g.outputs : nullptr;
    for (bool of_outputs : {true, false})
      if (new_outputs || !of_outputs)
        to_columns<I>(of_outputs ? outputs : inputs, copied, (of_outputs ? g.part_outputs : g.inputs) / 16,
                      of_outputs ? output_columns : input_columns);
    const std::int64_t vectors = (copied + at_once - 1) / at_once;
#ifdef TUTTI_HAS_AMX
    if constexpr (Amx)
      for (std::int64_t p = 0; new_outputs && p < g.part_outputs / 16; ++p)
        for (std::int64_t k = 0; k < vectors; k += amx::side)
          amx::transpose<I>(output_columns + p * column_floats + k * 16);
#endif
    const bool add = g.add || at.first > 0;
    std::int64_t tile = 0;
    for (std::int64_t c = 0; c < g.inputs / 16; c += tile_columns)
      for (std::int64_t p = 0; p < g.part_outputs; p += tile_rows, ++tile) {
        // Prefetches the data of the next step, because its copies would wait for memory.
        for (std::int64_t k = next.count * tile / tiles; k < next.count * (tile + 1) / tiles; ++k) {
          if (next.place == 0) ask_for(g.dy + (next.first + k) * g.outputs + g.first_output, g.part_outputs);
          if (next_inputs[k] != nullptr) ask_for(next_inputs[k], g.inputs);
        }
        TileOutputs a{output_columns + p / 16 * column_floats + p % 16, 16};
        if constexpr (!pairs)
          if (!copies) a = {dy + p, g.outputs};
        const float* b = input_columns + c * column_floats;
        float* dw = g.dw + p * g.dw_output + at.place * g.dw_place + 16 * c;
#ifdef TUTTI_HAS_AMX
        if constexpr (Amx) {
          const std::int64_t groups = vectors / amx::side;
          const bool wide = c + tile_columns <= g.inputs / 16;
          if (p + tile_rows <= g.part_outputs)
            wide ? gradient_tiles<2, 2>(a.from, b, groups, dw, g.dw_output, add)
                 : gradient_tiles<2, 1>(a.from, b, groups, dw, g.dw_output, add);
          else
            wide ? gradient_tiles<1, 2>(a.from, b, groups, dw, g.dw_output, add)
                 : gradient_tiles<1, 1>(a.from, b, groups, dw, g.dw_output, add);
          continue;
        }
#endif
        if (c + tile_columns <= g.inputs / 16)
          gradient_tile<I, T, tile_columns>(a, b, vectors, dw, g.dw_output, add);
        else
          gradient_tile<I, T, 1>(a, b, vectors, dw, g.dw_output, add);
      }
  }
}

TUTTI_TARGET_AVX512 inline void weight_gradient_f32(const WeightGradientArgs<float>& g) {
  weight_gradient_body<Isa::avx512>(g);
}
TUTTI_TARGET_AVX512_BF16 inline void weight_gradient_bf16(const WeightGradientArgs<bf16>& g) {
  weight_gradient_body<Isa::avx512_bf16>(g);
}
#ifdef TUTTI_HAS_AMX
TUTTI_TARGET_AVX512_BF16 inline void weight_gradient_amx(const WeightGradientArgs<bf16>& g) {
  const amx::Tiles tiles;
  weight_gradient_body<Isa::avx512_bf16, bf16, true>(g);
}
#endif

}  // namespace detail

#endif

// Requires has_weight_gradient().
template <class T>
void weight_gradient([[maybe_unused]] const WeightGradientArgs<T>& g) {
#ifdef TUTTI_HAS_AMX
  if constexpr (std::is_same_v<T, bf16>)
    if (g.amx) return detail::weight_gradient_amx(g);
#endif
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, bf16>)
    detail::weight_gradient_bf16(g);
  else
    detail::weight_gradient_f32(g);
#else
  fail<UsageError>("weight_gradient", "AVX-512", "another processor");
#endif
}
TUTTI_CORE_INSTANCE(template void weight_gradient<float>(const WeightGradientArgs<float>&));
TUTTI_CORE_INSTANCE(template void weight_gradient<bf16>(const WeightGradientArgs<bf16>&));

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
