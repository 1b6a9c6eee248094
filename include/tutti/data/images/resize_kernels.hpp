// SPDX-License-Identifier: MIT
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tutti/core/isa.hpp>

// The two passes of Resizer over one output row: the first blends rows of u8 into one of 8.7 bits, the second blends
// its pixels. Weights are 0..2^14 in i16 and sum to 2^14, so all sums stay below 2^30. Integer arithmetic: every
// instruction set gives the same result.
namespace tutti::cpu {

inline constexpr int resize_weight_bits = 14, resize_fraction_bits = 7;
inline constexpr int resize_row_shift = resize_weight_bits - resize_fraction_bits;
inline constexpr int resize_column_shift = resize_weight_bits + resize_fraction_bits;

// The weights of one axis, [outputs, taps], and the first tap of each output, counted in values: 3 a pixel for columns.
struct ResizeTaps {
  const std::int32_t* first;
  const std::int16_t* weights;
  const std::int16_t* grouped;  // of columns, see group_weights
  int taps;                     // even
  int outputs;
};

// One value of each pass.
inline std::int16_t blend_row_value(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, int i) {
  std::int32_t sum = 1 << (resize_row_shift - 1);
  for (int t = 0; t < taps; ++t) sum += std::int32_t{weights[t]} * rows[t][i];
  return static_cast<std::int16_t>(sum >> resize_row_shift);
}
inline void blend_pixel(const std::int16_t* row, const ResizeTaps& by, int i, std::uint8_t* to) {
  const std::int16_t *from = row + by.first[i], *w = by.weights + std::ptrdiff_t{i} * by.taps;
  for (int c = 0; c < 3; ++c) {
    std::int32_t sum = 1 << (resize_column_shift - 1);
    for (int t = 0; t < by.taps; ++t) sum += std::int32_t{w[t]} * from[t * 3 + c];
    to[3 * i + c] = static_cast<std::uint8_t>(sum >> resize_column_shift);
  }
}

// Number of outputs in a vector of columns, and their order in it: two 128-bit halves are processed at once.
inline constexpr int column_group = 4;
inline constexpr int column_order[column_group] = {0, 2, 1, 3};

// Writes weights for whole groups, [groups, taps / 2, 4 pixels in column_order, 8]: a pair of adjacent taps for each of
// three channels, and two zeros.
inline void group_weights(const std::int16_t* weights, int taps, int outputs, std::int16_t* to) {
  for (int g = 0; g + column_group <= outputs; g += column_group)
    for (int t = 0; t < taps; t += 2)
      for (const int k : column_order) {
        const std::int16_t* w = weights + std::ptrdiff_t{g + k} * taps + t;
        const std::int16_t eight[8] = {w[0], w[1], w[0], w[1], w[0], w[1], 0, 0};
        std::memcpy(to, eight, sizeof eight);
        to += 8;
      }
}

#if defined(__x86_64__)

// Taps: 2, or 0 if the number is only in `taps`.
template <int Taps>
TUTTI_TARGET_AVX2 inline void blend_rows_avx2(const std::uint8_t* const* rows, const std::int16_t* weights, int taps,
                                              int n, std::int16_t* to) {
  const __m256i half = _mm256_set1_epi32(1 << (resize_row_shift - 1));
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    __m256i low = half, high = half;  // i .. i + 7, i + 8 .. i + 15
    for (int t = 0; t < (Taps > 0 ? Taps : taps); t += 2) {
      std::int32_t pair;
      std::memcpy(&pair, weights + t, 4);
      const __m256i w = _mm256_set1_epi32(pair);
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[t] + i));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[t + 1] + i));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)), w));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b)), w));
    }
    const __m256i both =
        _mm256_packs_epi32(_mm256_srai_epi32(low, resize_row_shift), _mm256_srai_epi32(high, resize_row_shift));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_permute4x64_epi64(both, 0xd8));
  }
  for (; i < n; ++i) to[i] = blend_row_value(rows, weights, taps, i);
}

// Returns the sums of the pixels at p and q: [r g b 0 | r g b 0]. `weights` belongs to this pair of taps; the weights
// of the next pair are 8 * column_group further.
template <int Taps>
TUTTI_TARGET_AVX2 inline __m256i blend_two(const std::int16_t* p, const std::int16_t* q, const std::int16_t* weights,
                                           int taps) {
  const __m256i pairs =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1));
  __m256i sum = _mm256_set1_epi32(1 << (resize_column_shift - 1));
  for (int t = 0; t < (Taps > 0 ? Taps : taps); t += 2, p += 6, q += 6, weights += 8 * column_group) {
    const __m256i x = _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(q), reinterpret_cast<const __m128i*>(p));
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(x, pairs), w));
  }
  return _mm256_srai_epi32(sum, resize_column_shift);
}

template <int Taps>
TUTTI_TARGET_AVX2 inline void blend_columns_avx2(const std::int16_t* row, const ResizeTaps& by, std::uint8_t* to) {
  const __m256i close =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  const int taps = Taps > 0 ? Taps : by.taps;
  const std::int16_t* w = by.grouped;
  int i = 0;
  // Four pixels are stored as 14 bytes, so the last pixels of a row are processed one by one.
  for (; i + column_group < by.outputs; i += column_group, w += std::ptrdiff_t{taps} * 4 * column_group) {
    const std::int32_t* first = by.first + i;
    const __m256i even = blend_two<Taps>(row + first[0], row + first[2], w, taps);
    const __m256i odd = blend_two<Taps>(row + first[1], row + first[3], w + 16, taps);
    const __m256i words = _mm256_packs_epi32(even, odd);  // [0 1 | 2 3]
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(words, words), close);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 3 * i), _mm256_castsi256_si128(bytes));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 3 * i + 6), _mm256_extracti128_si256(bytes, 1));
  }
  for (; i < by.outputs; ++i) blend_pixel(row, by, i, to);
}

// For the maskz_ forms, which compute the same as the plain ones: GCC 12 warns that the plain ones use an uninitialised
// value.
inline constexpr std::uint16_t all_lanes = 0xffff;

template <int Taps>
TUTTI_TARGET_AVX512 inline void blend_rows_avx512(const std::uint8_t* const* rows, const std::int16_t* weights,
                                                  int taps, int n, std::int16_t* to) {
  const __m512i half = _mm512_set1_epi32(1 << (resize_row_shift - 1)),
                order = _mm512_setr_epi64(0, 2, 1, 3, 4, 6, 5, 7);
  int i = 0;
  for (; i + 32 <= n; i += 32) {
    __m512i low = half, high = half;
    for (int t = 0; t < (Taps > 0 ? Taps : taps); t += 2) {
      std::int32_t pair;
      std::memcpy(&pair, weights + t, 4);
      const __m512i w = _mm512_set1_epi32(pair);
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[t] + i));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[t + 1] + i));
      low = _mm512_add_epi32(low, _mm512_madd_epi16(_mm512_cvtepu8_epi16(_mm256_unpacklo_epi8(a, b)), w));
      high = _mm512_add_epi32(high, _mm512_madd_epi16(_mm512_cvtepu8_epi16(_mm256_unpackhi_epi8(a, b)), w));
    }
    const __m512i both = _mm512_packs_epi32(_mm512_maskz_srai_epi32(all_lanes, low, resize_row_shift),
                                            _mm512_maskz_srai_epi32(all_lanes, high, resize_row_shift));
    _mm512_storeu_si512(to + i, _mm512_maskz_permutexvar_epi64(0xff, order, both));
  }
  for (; i < n; ++i) to[i] = blend_row_value(rows, weights, taps, i);
}

template <int Taps>
TUTTI_TARGET_AVX512 inline void blend_columns_avx512(const std::int16_t* row, const ResizeTaps& by, std::uint8_t* to) {
  const __m512i pairs =
      _mm512_maskz_broadcast_i32x4(all_lanes, _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1));
  // Pixels are in column_order.
  const __m128i close = _mm_setr_epi8(0, 1, 2, 8, 9, 10, 4, 5, 6, 12, 13, 14, -1, -1, -1, -1);
  const int taps = Taps > 0 ? Taps : by.taps;
  const std::int16_t* w = by.grouped;
  int i = 0;
  // Four pixels are stored as 16 bytes, so the last pixels of a row are processed one by one.
  for (; i + column_group + 1 < by.outputs; i += column_group) {
    const std::int32_t* first = by.first + i;
    const std::int16_t *p0 = row + first[0], *p1 = row + first[2], *p2 = row + first[1], *p3 = row + first[3];
    __m512i sum = _mm512_set1_epi32(1 << (resize_column_shift - 1));
    for (int t = 0; t < taps; t += 2, p0 += 6, p1 += 6, p2 += 6, p3 += 6, w += 8 * column_group) {
      __m512i x = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p0)));
      x = _mm512_mask_broadcast_i32x4(x, 0x00f0, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p1)));
      x = _mm512_mask_broadcast_i32x4(x, 0x0f00, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p2)));
      x = _mm512_mask_broadcast_i32x4(x, 0xf000, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p3)));
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_shuffle_epi8(x, pairs), _mm512_loadu_si512(w)));
    }
    const __m128i bytes =
        _mm512_maskz_cvtepi32_epi8(all_lanes, _mm512_maskz_srai_epi32(all_lanes, sum, resize_column_shift));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 3 * i), _mm_shuffle_epi8(bytes, close));
  }
  for (; i < by.outputs; ++i) blend_pixel(row, by, i, to);
}

#endif

// Registers of 128 bits as the compiler's vector types, for NEON. They compile for every little-endian processor. GCC
// 12 converts half a register element by element, so numbers are widened by zeros between them.
using U8x16 = std::uint8_t __attribute__((vector_size(16)));
using I16x8 = std::int16_t __attribute__((vector_size(16)));
using I32x4 = std::int32_t __attribute__((vector_size(16)));

inline void blend_rows_128(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, int n,
                           std::int16_t* to) {
  const I32x4 half = I32x4{} + (1 << (resize_row_shift - 1));
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    I32x4 a = half, b = half, c = half, d = half;  // i .. i + 3, and so on
    for (int t = 0; t < taps; ++t) {
      const std::int32_t w = weights[t];
      const I16x8 zeros = {};
      U8x16 x;
      std::memcpy(&x, rows[t] + i, sizeof x);
      const auto low =
          (I16x8)__builtin_shufflevector(x, U8x16{}, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      const auto high =
          (I16x8)__builtin_shufflevector(x, U8x16{}, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
      a += (I32x4)__builtin_shufflevector(low, zeros, 0, 8, 1, 9, 2, 10, 3, 11) * w;
      b += (I32x4)__builtin_shufflevector(low, zeros, 4, 12, 5, 13, 6, 14, 7, 15) * w;
      c += (I32x4)__builtin_shufflevector(high, zeros, 0, 8, 1, 9, 2, 10, 3, 11) * w;
      d += (I32x4)__builtin_shufflevector(high, zeros, 4, 12, 5, 13, 6, 14, 7, 15) * w;
    }
    const auto store = [&](I32x4 p, I32x4 q, std::int16_t* at) {
      const I16x8 both = __builtin_shufflevector((I16x8)(p >> resize_row_shift), (I16x8)(q >> resize_row_shift), 0, 2,
                                                 4, 6, 8, 10, 12, 14);
      std::memcpy(at, &both, sizeof both);
    };
    store(a, b, to + i);
    store(c, d, to + i + 8);
  }
  for (; i < n; ++i) to[i] = blend_row_value(rows, weights, taps, i);
}

// Computes the last pixels of a row one by one, because four pixels are stored as 16 bytes. A load of a tap reads 2
// bytes of the next one.
inline void blend_columns_128(const std::int16_t* row, const ResizeTaps& by, std::uint8_t* to) {
  const I32x4 half = I32x4{} + (1 << (resize_column_shift - 1));
  const int taps = by.taps;
  const auto add = [](I32x4& sum, const std::int16_t* from, std::int32_t weight) {
    I16x8 pixel = {};
    std::memcpy(&pixel, from, 4 * sizeof *from);
    sum += (I32x4)__builtin_shufflevector(pixel, I16x8{}, 0, 8, 1, 9, 2, 10, 3, 11) * weight;
  };
  int i = 0;
  for (; i + column_group + 1 < by.outputs; i += column_group) {
    const std::int32_t* first = by.first + i;
    const std::int16_t *p0 = row + first[0], *p1 = row + first[1], *p2 = row + first[2], *p3 = row + first[3];
    const std::int16_t* w = by.weights + std::ptrdiff_t{i} * taps;
    I32x4 a = half, b = half, c = half, d = half;  // a pixel each: r, g, b, and a value that is not used
    for (int t = 0; t < taps; ++t, p0 += 3, p1 += 3, p2 += 3, p3 += 3) {
      add(a, p0, w[t]);
      add(b, p1, w[taps + t]);
      add(c, p2, w[2 * taps + t]);
      add(d, p3, w[3 * taps + t]);
    }
    // The numbers are 0..255: the first byte of each.
    const U8x16 two = __builtin_shufflevector((U8x16)(a >> resize_column_shift), (U8x16)(b >> resize_column_shift), 0,
                                              4, 8, 16, 20, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const U8x16 more = __builtin_shufflevector((U8x16)(c >> resize_column_shift), (U8x16)(d >> resize_column_shift), 0,
                                               4, 8, 16, 20, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const U8x16 four = __builtin_shufflevector(two, more, 0, 1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 0, 0, 0, 0);
    std::memcpy(to + std::ptrdiff_t{3} * i, &four, sizeof four);
  }
  for (; i < by.outputs; ++i) blend_pixel(row, by, i, to);
}

// to[i] = the sum of weights[t] * rows[t][i], for n values. `taps` is even.
inline void blend_rows(Isa isa, const std::uint8_t* const* rows, const std::int16_t* weights, int taps, int n,
                       std::int16_t* to) {
#if defined(__x86_64__)
  if (isa == Isa::avx512 || isa == Isa::avx512_bf16)
    return taps == 2 ? blend_rows_avx512<2>(rows, weights, taps, n, to)
                     : blend_rows_avx512<0>(rows, weights, taps, n, to);
  if (isa == Isa::avx2)
    return taps == 2 ? blend_rows_avx2<2>(rows, weights, taps, n, to) : blend_rows_avx2<0>(rows, weights, taps, n, to);
#endif
  if (isa == Isa::neon || isa == Isa::neon_bf16) return blend_rows_128(rows, weights, taps, n, to);
  for (int i = 0; i < n; ++i) to[i] = blend_row_value(rows, weights, taps, i);
}

// Computes the RGB pixels of one output row. Reads up to 4 bytes after the last tap of each.
inline void blend_columns(Isa isa, const std::int16_t* row, const ResizeTaps& by, std::uint8_t* to) {
#if defined(__x86_64__)
  if (isa == Isa::avx512 || isa == Isa::avx512_bf16)
    return by.taps == 2 ? blend_columns_avx512<2>(row, by, to) : blend_columns_avx512<0>(row, by, to);
  if (isa == Isa::avx2) return by.taps == 2 ? blend_columns_avx2<2>(row, by, to) : blend_columns_avx2<0>(row, by, to);
#endif
  if (isa == Isa::neon || isa == Isa::neon_bf16) return blend_columns_128(row, by, to);
  for (int i = 0; i < by.outputs; ++i) blend_pixel(row, by, i, to);
}

}  // namespace tutti::cpu
