// SPDX-License-Identifier: MIT
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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

#elif defined(__aarch64__)

inline void blend_rows_neon(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, int n,
                            std::int16_t* to) {
  const int32x4_t half = vdupq_n_s32(1 << (resize_row_shift - 1));
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    int32x4_t a = half, b = half, c = half, d = half;  // i .. i + 3, and so on
    for (int t = 0; t < taps; ++t) {
      const std::int16_t w = weights[t];
      const uint8x16_t x = vld1q_u8(rows[t] + i);
      const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x)));
      const int16x8_t high = vreinterpretq_s16_u16(vmovl_high_u8(x));
      a = vmlal_n_s16(a, vget_low_s16(low), w);
      b = vmlal_high_n_s16(b, low, w);
      c = vmlal_n_s16(c, vget_low_s16(high), w);
      d = vmlal_high_n_s16(d, high, w);
    }
    vst1q_s16(to + i, vshrn_high_n_s32(vshrn_n_s32(a, resize_row_shift), b, resize_row_shift));
    vst1q_s16(to + i + 8, vshrn_high_n_s32(vshrn_n_s32(c, resize_row_shift), d, resize_row_shift));
  }
  for (; i < n; ++i) to[i] = blend_row_value(rows, weights, taps, i);
}

// Computes the last pixels of a row one by one, because four pixels are stored as 16 bytes. A load of a tap reads 2
// bytes of the next one.
inline void blend_columns_neon(const std::int16_t* row, const ResizeTaps& by, std::uint8_t* to) {
  constexpr std::uint8_t r_g_b[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 255, 255, 255, 255};
  const uint8x16_t close = vld1q_u8(r_g_b);
  const int32x4_t half = vdupq_n_s32(1 << (resize_column_shift - 1));
  const int taps = by.taps;
  int i = 0;
  for (; i + column_group + 1 < by.outputs; i += column_group) {
    const std::int32_t* first = by.first + i;
    const std::int16_t *p0 = row + first[0], *p1 = row + first[1], *p2 = row + first[2], *p3 = row + first[3];
    const std::int16_t* w = by.weights + std::ptrdiff_t{i} * taps;
    int32x4_t a = half, b = half, c = half, d = half;  // a pixel each: r, g, b, and a value that is not used
    for (int t = 0; t < taps; ++t, p0 += 3, p1 += 3, p2 += 3, p3 += 3) {
      a = vmlal_n_s16(a, vld1_s16(p0), w[t]);
      b = vmlal_n_s16(b, vld1_s16(p1), w[taps + t]);
      c = vmlal_n_s16(c, vld1_s16(p2), w[2 * taps + t]);
      d = vmlal_n_s16(d, vld1_s16(p3), w[3 * taps + t]);
    }
    // Of the fourth values only the low bits remain, and `close` drops them.
    const auto narrow = [](int32x4_t p, int32x4_t q) {
      return vmovn_s16(
          vcombine_s16(vmovn_s32(vshrq_n_s32(p, resize_column_shift)), vmovn_s32(vshrq_n_s32(q, resize_column_shift))));
    };
    const uint8x16_t bytes = vreinterpretq_u8_s8(vcombine_s8(narrow(a, b), narrow(c, d)));
    vst1q_u8(to + std::ptrdiff_t{3} * i, vqtbl1q_u8(bytes, close));
  }
  for (; i < by.outputs; ++i) blend_pixel(row, by, i, to);
}

#endif

// to[i] = the sum of weights[t] * rows[t][i], for n values. `taps` is even.
inline void blend_rows(Isa isa, const std::uint8_t* const* rows, const std::int16_t* weights, int taps, int n,
                       std::int16_t* to) {
#if defined(__x86_64__)
  if (isa == Isa::avx512 || isa == Isa::avx512_bf16)
    return taps == 2 ? blend_rows_avx512<2>(rows, weights, taps, n, to)
                     : blend_rows_avx512<0>(rows, weights, taps, n, to);
  if (isa == Isa::avx2)
    return taps == 2 ? blend_rows_avx2<2>(rows, weights, taps, n, to) : blend_rows_avx2<0>(rows, weights, taps, n, to);
#elif defined(__aarch64__)
  if (isa != Isa::baseline) return blend_rows_neon(rows, weights, taps, n, to);
#endif
  (void)isa;
  for (int i = 0; i < n; ++i) to[i] = blend_row_value(rows, weights, taps, i);
}

// Computes the RGB pixels of one output row. Reads up to 4 bytes after the last tap of each.
inline void blend_columns(Isa isa, const std::int16_t* row, const ResizeTaps& by, std::uint8_t* to) {
#if defined(__x86_64__)
  if (isa == Isa::avx512 || isa == Isa::avx512_bf16)
    return by.taps == 2 ? blend_columns_avx512<2>(row, by, to) : blend_columns_avx512<0>(row, by, to);
  if (isa == Isa::avx2) return by.taps == 2 ? blend_columns_avx2<2>(row, by, to) : blend_columns_avx2<0>(row, by, to);
#elif defined(__aarch64__)
  if (isa != Isa::baseline) return blend_columns_neon(row, by, to);
#endif
  (void)isa;
  for (int i = 0; i < by.outputs; ++i) blend_pixel(row, by, i, to);
}

}  // namespace tutti::cpu
