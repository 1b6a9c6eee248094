// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/winograd/layout.hpp>
#include <tutti/engine/cpu/winograd/transforms.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Transforms weights [outputs][inputs][3][3] to G w G' in panels (WeightLayout). Backward data is the convolution of
// gradients with the weights rotated by 180 degrees, with inputs and outputs exchanged.
namespace tutti::cpu::winograd {

struct PackArgs {
  const float* weights = nullptr;
  std::int64_t outputs = 0, inputs = 0;  // as in `weights`
  bool backward = false;
  bool bf16 = false;  // if the weights are used as bf16: they are rounded first
  bool strided = false;
  std::int64_t first_panel = 0, panels = 0;
  float* to = nullptr;  // destination of the first of these panels
  bool far = false;     // the destination is far away in memory
};

#ifdef TUTTI_HAS_WIDE_KERNELS

namespace detail {

// One stage of a transposition: swaps positions with numbers that differ in bit S.
template <int S, class V, int... L>
TUTTI_INLINE void swap_bit(V& a, V& b, std::integer_sequence<int, L...>) {
  constexpr int lanes = sizeof...(L);
  const V low = __builtin_shufflevector(a, b, ((L & S) != 0 ? lanes + L - S : L)...);
  const V high = __builtin_shufflevector(a, b, ((L & S) != 0 ? lanes + L : L + S)...);
  a = low;
  b = high;
}
template <Isa I, int S>
TUTTI_INLINE void transpose_stage(F<I>* r) {
  constexpr int lanes = lanes_of<I>;
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i)
    if ((i & S) == 0) swap_bit<S>(r[i], r[i + S], std::make_integer_sequence<int, lanes>());
}
// Transposes as many registers as each has lanes.
template <Isa I>
TUTTI_INLINE void transpose_stages(F<I>* r) {
  transpose_stage<I, 1>(r);
  transpose_stage<I, 2>(r);
  if constexpr (lanes_of<I> >= 8) transpose_stage<I, 4>(r);
  if constexpr (lanes_of<I> == 16) transpose_stage<I, 8>(r);
}
// Transposes lanes x lanes floats from `from`, with rows `step` apart, to `to`. Prefetches the floats that are `ahead`
// floats further.
template <Isa I>
TUTTI_INLINE void transpose(const float* from, std::int64_t step, float* to, std::int64_t to_step, std::int64_t ahead) {
  constexpr int lanes = lanes_of<I>;
  F<I> r[lanes];
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) {
    load<I>(r[i], from + i * step);
    __builtin_prefetch(from + i * step + ahead);
  }
  transpose_stages<I>(r);
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) store<I>(to + i * to_step, r[i]);
}

// Gathers the weights of as many outputs and inputs as a register has lanes, with `step` floats from one output to the
// next: [position][summed channel][lane]. Prefetches the weights of the next channels.
template <Isa I>
TUTTI_INLINE void gather(const float* from, std::int64_t step, bool backward, float* to) {
  constexpr std::int64_t lanes = lanes_of<I>;
  const std::int64_t ahead = backward ? lanes * step : 9 * lanes;
  alignas(64) float by_output[9 * lanes * lanes];  // [input][position][output]
  for (std::int64_t e = 0; e < 9; ++e)
    transpose<I>(from + e * lanes, step, by_output + e * lanes * lanes, lanes, ahead);
  for (std::int64_t place = 0; place < 9; ++place)
    if (backward) {
      transpose<I>(by_output + place * lanes, 9 * lanes, to + (8 - place) * lanes * lanes, lanes, 0);
    } else {
      for (std::int64_t i = 0; i < lanes; ++i) {
        F<I> v;
        load<I>(v, static_cast<const float*>(by_output + (i * 9 + place) * lanes));
        store<I>(to + (place * lanes + i) * lanes, v);
      }
    }
}

template <Isa I>
TUTTI_INLINE void round_to_bf16(float* p) {
  bf16 rounded[lanes_of<I>];
  F<I> v;
  load<I>(v, static_cast<const float*>(p));
  store<I>(static_cast<bf16*>(rounded), v);
  load<I>(v, static_cast<const bf16*>(rounded));
  store<I>(p, v);
}

template <Isa I>
TUTTI_INLINE void pack_body(const PackArgs& a) {
  constexpr std::int64_t lanes = lanes_of<I>;
  const WeightLayout l(I, a.backward ? a.outputs : a.inputs, a.backward ? a.inputs : a.outputs);
  alignas(64) float rest[9 * lanes * lanes], block[9 * lanes * lanes];
  for (std::int64_t p = 0; p < a.panels; ++p)
    for (std::int64_t r = 0; r < l.registers; ++r)
      for (std::int64_t c = 0; c < l.channels; c += lanes) {
        const std::int64_t lane = (a.first_panel + p) * l.width + r * lanes;
        const std::int64_t output = a.backward ? c : lane, input = a.backward ? lane : c;
        const std::int64_t outputs = std::clamp<std::int64_t>(a.outputs - output, 0, lanes);
        const std::int64_t inputs = std::clamp<std::int64_t>(a.inputs - input, 0, lanes);
        const float* from = a.weights + (output * a.inputs + input) * 9;
        std::int64_t step = a.inputs * 9;
        if (outputs < lanes || inputs < lanes) {
          std::fill_n(static_cast<float*>(rest), 9 * lanes * lanes, 0.0F);
          for (std::int64_t o = 0; o < outputs; ++o)
            std::copy_n(from + o * step, inputs * 9, static_cast<float*>(rest) + o * 9 * lanes);
          from = static_cast<const float*>(rest);
          step = 9 * lanes;
        }
        gather<I>(from, step, a.backward, static_cast<float*>(block));
        if (a.bf16)
          for (std::int64_t i = 0; i < 9 * lanes * lanes; i += lanes) round_to_bf16<I>(static_cast<float*>(block) + i);
        float* const to = a.to + p * l.panel + c * l.width + r * lanes;
        for (std::int64_t k = 0; k < lanes; ++k) {
          // There are more points than the hardware's prefetchers can follow.
          if (a.far)
            for (std::int64_t i = 0; i < points; ++i)
              fetch_for_writing(reinterpret_cast<const std::byte*>(to + i * l.plane + (k + 4) * l.width));
          in_two_dimensions<F<I>, 3, patch>(
              [&](F<I>* w) TUTTI_LAMBDA { a.strided ? strided_weights_1d(w) : weights_1d(w); },
              [&](F<I>& v, int i, int j)
                  TUTTI_LAMBDA { load<I>(v, static_cast<const float*>(block + ((i * 3 + j) * lanes + k) * lanes)); },
              [&](const F<I>& v, int i, int j)
                  TUTTI_LAMBDA { store<I>(to + (i * patch + j) * l.plane + k * l.width, v); });
        }
      }
}

#if defined(__x86_64__)
TUTTI_TARGET_AVX512 inline void pack_avx512(const PackArgs& a) { pack_body<Isa::avx512>(a); }
TUTTI_TARGET_AVX2 inline void pack_avx2(const PackArgs& a) { pack_body<Isa::avx2>(a); }
#endif

}  // namespace detail

#endif

TUTTI_CORE_FUNCTION void pack_weights(Isa isa, const PackArgs& a);
#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void pack_weights([[maybe_unused]] Isa isa, [[maybe_unused]] const PackArgs& a) {
#if defined(__x86_64__)
  isa == Isa::avx2 ? detail::pack_avx2(a) : detail::pack_avx512(a);
#elif defined(TUTTI_HAS_WIDE_KERNELS)
  detail::pack_body<Isa::neon>(a);
#else
  fail<UsageError>("winograd", "AVX2, AVX-512 or NEON", "another processor");
#endif
}
#endif

}  // namespace tutti::cpu::winograd

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
