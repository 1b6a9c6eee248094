// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/winograd/strided_transforms.hpp>
#include <tutti/engine/cpu/winograd/transforms.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Tiles of NHWC images, of 4x4 pixels each or, for inputs with stride 2, 8x8, from top to bottom and from left to
// right. They are read with the pixels around them and transformed, or transformed and written. At incomplete edges,
// pixels outside count as zeros and are not written.
//
// Every program that includes this compiles it. To keep that short, pixels at the edges go through a small buffer, and
// so does bf16 with stride 2 or on AVX2, which is rarely used.
namespace tutti::cpu::winograd {

struct Images {
  std::int64_t rows = 0, h = 0, w = 0, channels = 0;
  std::int64_t side = tile;  // pixels of a tile, in both directions

  [[nodiscard]] std::int64_t tiles_h() const { return (h + side - 1) / side; }
  [[nodiscard]] std::int64_t tiles_w() const { return (w + side - 1) / side; }
  [[nodiscard]] std::int64_t tiles_per_row() const { return tiles_h() * tiles_w(); }
  [[nodiscard]] std::int64_t tiles() const { return rows * tiles_per_row(); }
};

// Returns the distance of planes of `floats` floats: an odd number of cache lines, because otherwise 36 streams would
// share a few sets of the first-level cache.
[[nodiscard]] inline std::int64_t plane_stride(std::int64_t floats) { return ((floats + 15) / 16 | 1) * 16; }

// Transformed channels fill whole registers of `lanes_at` floats; those after the last channel are zeros.
[[nodiscard]] constexpr std::int64_t lanes_at(Isa isa) { return isa == Isa::avx2 ? 8 : is_neon(isa) ? 4 : 16; }
[[nodiscard]] constexpr std::int64_t whole_registers(Isa isa, std::int64_t channels) {
  return (channels + lanes_at(isa) - 1) / lanes_at(isa) * lanes_at(isa);
}

// [point][register of channels][tile][channel of the register]
struct TransformedTiles {
  float* data = nullptr;
  std::int64_t tiles = 0;  // capacity
  std::int64_t plane = 0;  // floats from a point to the next
};

// What is read: inputs, with the pixels around them; or gradients of outputs, to be multiplied by the inputs. With
// stride 2 also gradients of outputs from which the gradient of the inputs is computed.
enum class Reads : std::uint8_t { inputs, gradients, strided_inputs, strided_gradients, strided_data };
// What is written: outputs; gradients of inputs count as outputs too, except with stride 2.
enum class Writes : std::uint8_t { outputs, strided_outputs, strided_data };

struct ReadTiles {
  Reads what = Reads::inputs;
  const void* from = nullptr;  // floats or bf16
  bool bf16 = false;
  Images images;
  std::int64_t first = 0, count = 0;  // tiles of the images
  TransformedTiles to;
  std::int64_t at = 0;  // the position of the first one in `to`
};

struct WriteTiles {
  Writes what = Writes::outputs;
  void* to = nullptr;  // floats or bf16
  bool bf16 = false;
  Images images;
  std::int64_t first = 0, count = 0;                // tiles of the images
  std::int64_t first_channel = 0, end_channel = 0;  // in whole registers
  const float* from = nullptr;                      // [point][tile][channel]; points and tiles have these steps:
  std::int64_t plane = 0, tile = 0;
  // If not null: one number for each channel of the images that is added to it; then `residual`, images like `to`, if
  // not null; then a relu.
  const float* bias = nullptr;
  const void* residual = nullptr;
  bool relu = false;
};

#ifdef TUTTI_HAS_WIDE_KERNELS

namespace detail {

// The position of the pixel at the upper left of a tile.
struct TilePlace {
  std::int64_t row, y, x;
};
[[nodiscard]] inline TilePlace place_of(const Images& s, std::int64_t t) {
  const auto across = static_cast<std::uint32_t>(s.tiles_w()), per_row = static_cast<std::uint32_t>(s.tiles_per_row());
  const auto n = static_cast<std::uint32_t>(t), in_row = n % per_row;
  return {n / per_row, in_row / across * s.side, in_row % across * s.side};
}
[[nodiscard]] inline std::int64_t offset_of(const Images& s, const TilePlace& at, std::int64_t dy, std::int64_t dx) {
  return ((at.row * s.h + at.y + dy) * s.w + at.x + dx) * s.channels;
}

// Prefetches a cache line that will be written.
TUTTI_INLINE void fetch_for_writing(const std::byte* p) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*p));  // the builtin would need a target of its own
#else
  __builtin_prefetch(p, 1);
#endif
}

// Prefetches pixels, side x side of them, that the tile after next will be the first to use: the hardware's prefetchers
// do not follow tiles of NHWC. At an edge some addresses lie outside, which is allowed for a prefetch.
template <bool Write>
TUTTI_INLINE void fetch_ahead(const std::byte* p, std::int64_t side, std::int64_t line, std::int64_t pixel) {
  for (std::int64_t i = 0; i < side; ++i)
    for (std::int64_t j = 0; j < side; j += tile)
#pragma GCC unroll 4
      for (int k = 0; k < tile; ++k) {
        const std::byte* const at = p + i * line + (j + k) * pixel;
        if constexpr (Write)
          fetch_for_writing(at);
        else
          __builtin_prefetch(at);
      }
}

// The positions of a tile's values in each direction, counted from the pixel at its upper left.
template <int N>
using Places = std::int8_t[N];
inline constexpr Places<patch> input_places = {-1, 0, 1, 2, 3, 4};
inline constexpr Places<patch> gradient_places = {0, 1, 2, 3};
inline constexpr Places<strided_patch> strided_input_places = {-1, 1, 3, 5, 7, 0, 2, 4, 6};
inline constexpr Places<strided_patch> strided_gradient_places = {0, 1, 2, 3};
inline constexpr Places<strided_patch> strided_data_places = {0, 1, 2, 3, 4, 0, 1, 2, 3};

// The values of a tile, which are row[i][column[j]]. Values outside, as `inside` and `exists` say, are zero.
template <class T, int N>
struct Lines {
  const T* row[N];
  std::int64_t inside[N];  // all bits set for rows inside, 0 for a row of zeros
  std::int64_t column[N];
  bool exists[N];  // whether the column exists
};

// Transforms the values of each tile to points. They are read as type T. If T is float and the memory holds another
// type, they are converted first.
template <Isa I, class T, class Transform>
TUTTI_INLINE void read_tiles(const ReadTiles& a, const Places<Transform::in>& places, const Transform& transform) {
  using V = F<I>;
  constexpr int in = Transform::in, out = Transform::out;
  const int values = transform.values();
  constexpr std::int64_t lanes = lanes_of<I>;
  alignas(64) static constexpr T zeros[lanes] = {};
  const Images& s = a.images;
  const bool converts = a.bf16 && std::is_same_v<T, float>;
  const std::int64_t unit = a.bf16 ? sizeof(bf16) : sizeof(float);
  const std::int64_t line = s.w * s.channels, plane = a.to.plane;
  const std::int64_t edge = *std::max_element(places, places + in) + 1 - s.side;  // offset of the pixels not yet read
  const auto* const pixels = static_cast<const std::byte*>(a.from);
  alignas(64) T buffer[in][in][lanes];
  Lines<T, in> here, copy;
  for (int i = 0; i < in; ++i) {
    copy.row[i] = static_cast<const T*>(buffer[i][0]);
    copy.inside[i] = -1;
    copy.column[i] = i * lanes;
    copy.exists[i] = true;
  }
  for (std::int64_t k = 0; k < a.count; ++k) {
    const TilePlace at = place_of(s, a.first + k), next = place_of(s, std::min(a.first + k + 2, s.tiles() - 1));
    const std::byte* const ahead = pixels + offset_of(s, next, edge, edge) * unit;
    const std::byte* const first = pixels + offset_of(s, at, 0, 0) * unit;
    for (int i = 0; i < in; ++i) {
      const std::int64_t y = at.y + places[i], x = at.x + places[i];
      const bool inside = y >= 0 && y < s.h;
      here.row[i] = inside ? reinterpret_cast<const T*>(first + places[i] * line * unit) : zeros;
      here.inside[i] = inside ? -1 : 0;
      here.column[i] = places[i] * s.channels;
      here.exists[i] = x >= 0 && x < s.w;
    }
    for (std::int64_t c = 0; c < s.channels; c += lanes) {
      if (c * unit % 64 == 0) fetch_ahead<false>(ahead + c * unit, s.side, line * unit, s.channels * unit);
      const std::int64_t count = std::min(s.channels - c, lanes);
      const bool copies = converts || count < lanes;  // the last channels are followed by zeros
      if (copies)
        for (int i = 0; i < values; ++i)
          for (int j = 0; j < values; ++j) {
            T* const to = buffer[i][j];
            std::fill_n(to, lanes, T{});
            if (here.inside[i] == 0 || !here.exists[j]) continue;
            const std::byte* const from = first + (places[i] * line + here.column[j] + c) * unit;
            if (!converts)
              std::copy_n(reinterpret_cast<const T*>(from), count, to);
            else
              std::copy_n(reinterpret_cast<const bf16*>(from), count, to);
          }
      const Lines<T, in>& l = copies ? copy : here;
      const std::int64_t channel = copies ? 0 : c;
      float* to = a.to.data + (a.at + k) * lanes + c * a.to.tiles;
      in_two_dimensions<V, in, out>(
          transform, values, out, [&](int j) TUTTI_LAMBDA { return l.exists[j]; },
          [&](V& v, int i, int j) TUTTI_LAMBDA { load<I>(v, l.row[i] + ((l.column[j] + channel) & l.inside[i])); },
          [&](const V& v, int, int) TUTTI_LAMBDA {
            store<I>(to, v);
            to += plane;
          });
    }
  }
}
template <Isa I, class T>
TUTTI_INLINE void read_body(const ReadTiles& a) {
  const bool gradients = a.what == Reads::gradients;
  read_tiles<I, T>(a, gradients ? gradient_places : input_places, ReadTransform<F<I>>{gradients});
}
template <Isa I>
TUTTI_INLINE void read_strided_body(const ReadTiles& a) {
  const auto& places = a.what == Reads::strided_inputs ? strided_input_places
                       : a.what == Reads::strided_data ? strided_data_places
                                                       : strided_gradient_places;
  read_tiles<I, float>(a, places, StridedReadTransform<F<I>>{a.what == Reads::strided_gradients});
}

// Adds what follows the convolution to one pixel's channels c <= i < c + count, and writes them to `to`. `residual`:
// the same channels of the residual, or null. `rounds`: whether J rounds to bf16, otherwise I.
template <Isa I, Isa J>
TUTTI_INLINE void write_end(const WriteTiles& a, F<I>& v, const F<I>& bias, const F<I>& low, const std::byte* residual,
                            std::int64_t count, bool rounds, std::byte* to) {
  constexpr std::int64_t lanes = lanes_of<I>;
  v += bias;
  if (residual != nullptr) {
    F<I> r;
    alignas(64) float some[lanes] = {};
    if (a.bf16) {
      bf16 less[lanes] = {};
      std::copy_n(reinterpret_cast<const bf16*>(residual), count, static_cast<bf16*>(less));
      load<I>(r, static_cast<const bf16*>(less));
    } else if (count < lanes) {
      std::copy_n(reinterpret_cast<const float*>(residual), count, static_cast<float*>(some));
      load<I>(r, static_cast<const float*>(some));
    } else {
      load<I>(r, reinterpret_cast<const float*>(residual));
    }
    v += r;
  }
  v = v < low ? low : v;  // a NaN passes
  if (a.bf16) {
    bf16 rounded[lanes];
    if constexpr (I == J) {
      store<I>(static_cast<bf16*>(rounded), v);
    } else {
      rounds ? store<J>(static_cast<bf16*>(rounded), v) : store<I>(static_cast<bf16*>(rounded), v);
    }
    std::copy_n(static_cast<const bf16*>(rounded), count, reinterpret_cast<bf16*>(to));
  } else if (count < lanes) {
    alignas(64) float some[lanes];
    store<I>(static_cast<float*>(some), v);
    std::copy_n(static_cast<const float*>(some), count, reinterpret_cast<float*>(to));
  } else {
    store<I>(reinterpret_cast<float*>(to), v);
  }
}

// Transforms points to the pixels of each tile. They are written as type T. If T is float and the memory has another
// type, or something follows the convolution, they go through a buffer. `J`: the instruction set that rounds.
template <Isa I, Isa J, class T, class Transform>
TUTTI_INLINE void write_tiles(const WriteTiles& a, const Transform& transform, bool rounds) {
  using V = F<I>;
  constexpr int in = Transform::in, out = Transform::out;
  constexpr std::int64_t lanes = lanes_of<I>;
  const Images& s = a.images;
  const bool buffers = std::is_same_v<T, float> && (a.bf16 || a.bias != nullptr);
  const std::int64_t unit = a.bf16 ? sizeof(bf16) : sizeof(float);
  const std::int64_t line = s.w * s.channels, plane = a.plane;
  auto* const pixels = static_cast<std::byte*>(a.to);
  alignas(64) T buffer[out][out][lanes];
  V low;
  broadcast<I>(low, a.relu ? 0.0F : -std::numeric_limits<float>::infinity());
  for (std::int64_t k = 0; k < a.count; ++k) {
    const TilePlace at = place_of(s, a.first + k), next = place_of(s, std::min(a.first + k + 2, s.tiles() - 1));
    const std::byte* const ahead = pixels + offset_of(s, next, 0, 0) * unit;
    const std::int64_t first = offset_of(s, at, 0, 0);
    const std::int64_t bottom = std::min(s.side, s.h - at.y);
    const std::int64_t right = std::min(s.side, s.w - at.x);
    for (std::int64_t c = a.first_channel; c < std::min(a.end_channel, s.channels); c += lanes) {
      if (c == a.first_channel || c * unit % 64 == 0)
        fetch_ahead<true>(ahead + c * unit, s.side, line * unit, s.channels * unit);
      const std::int64_t count = std::min(lanes, s.channels - c);
      const bool inside = !buffers && bottom == s.side && right == s.side && count == lanes;
      T* const to = inside ? reinterpret_cast<T*>(pixels + (first + c) * unit) : static_cast<T*>(buffer[0][0]);
      const std::int64_t down = inside ? line : out * lanes, along = inside ? s.channels : lanes;
      const float* const from = a.from + k * a.tile + (c - a.first_channel);
      in_two_dimensions<V, in, out>(
          transform, in, transform.values(), [](int) TUTTI_LAMBDA { return true; },
          [&](V& v, int i, int j) TUTTI_LAMBDA { load<I>(v, from + (i * in + j) * plane); },
          [&](const V& v, int i, int j) TUTTI_LAMBDA {
            if (j < transform.values()) store<J>(to + i * down + j * along, v);
          });
      if (inside) continue;
      V bias = V{};
      if (a.bias != nullptr) {
        alignas(64) float some[lanes] = {};
        std::copy_n(a.bias + c, count, static_cast<float*>(some));
        load<I>(bias, static_cast<const float*>(some));
      }
      for (std::int64_t i = 0; i < bottom; ++i)
        for (std::int64_t j = 0; j < right; ++j) {
          const T* const pixel = buffer[i][j];
          const std::int64_t offset = (first + i * line + j * s.channels + c) * unit;
          if (buffers) {
            V v;
            load<I>(v, pixel);
            write_end<I, J>(a, v, bias, low,
                            a.residual == nullptr ? nullptr : static_cast<const std::byte*>(a.residual) + offset, count,
                            rounds, pixels + offset);
          } else {
            std::copy_n(pixel, count, reinterpret_cast<T*>(pixels + offset));
          }
        }
    }
  }
}
// Writes type T. Only for stride 1.
template <Isa I, Isa J, class T>
TUTTI_INLINE void write_body(const WriteTiles& a, bool rounds) {
  write_tiles<I, J, T>(a, WriteTransform<F<I>>{}, rounds);
}
template <Isa I>
TUTTI_INLINE void write_strided_body(const WriteTiles& a) {
  write_tiles<I, I, float>(a, StridedWriteTransform<F<I>>{a.what == Writes::strided_data}, false);
}
// J: the instruction set that rounds if `rounds`.
template <Isa I, Isa J>
TUTTI_INLINE void write_outputs(const WriteTiles& a, bool rounds) {
  a.bf16&& rounds&& a.bias == nullptr ? write_body<I, J, bf16>(a, rounds) : write_body<I, J, float>(a, rounds);
}
#if defined(__x86_64__)
TUTTI_TARGET_AVX512 inline void read_avx512(const ReadTiles& a) {
  if (a.what > Reads::gradients) return read_strided_body<Isa::avx512>(a);
  a.bf16 ? read_body<Isa::avx512, bf16>(a) : read_body<Isa::avx512, float>(a);
}
TUTTI_TARGET_AVX2 inline void read_avx2(const ReadTiles& a) {
  a.what > Reads::gradients ? read_strided_body<Isa::avx2>(a) : read_body<Isa::avx2, float>(a);
}
TUTTI_TARGET_AVX512 inline void write_avx512(const WriteTiles& a, bool rounds) {
  constexpr Isa isa = Isa::avx512;
  if (a.what != Writes::outputs) return write_strided_body<isa>(a);
  write_outputs<isa, Isa::avx512_bf16>(a, rounds);
}
TUTTI_TARGET_AVX2 inline void write_avx2(const WriteTiles& a) {
  constexpr Isa isa = Isa::avx2;
  a.what != Writes::outputs ? write_strided_body<isa>(a) : write_body<isa, isa, float>(a, false);
}
#else
inline void read_neon(const ReadTiles& a) {
  if (a.what > Reads::gradients) return read_strided_body<Isa::neon>(a);
  a.bf16 ? read_body<Isa::neon, bf16>(a) : read_body<Isa::neon, float>(a);
}
inline void write_neon(const WriteTiles& a, bool rounds) {
  constexpr Isa isa = Isa::neon;
  if (a.what != Writes::outputs) return write_strided_body<isa>(a);
  write_outputs<isa, Isa::neon_bf16>(a, rounds);
}
#endif

}  // namespace detail

#endif

// Runs the transforms for reading and writing that ReadTiles::what and WriteTiles::what select. For all instruction
// sets beyond the baseline.
TUTTI_CORE_FUNCTION void read_and_transform(Isa isa, const ReadTiles& a);
TUTTI_CORE_FUNCTION void transform_and_write(Isa isa, const WriteTiles& a);

#if TUTTI_CORE_DEFINITIONS
#if defined(__x86_64__)
TUTTI_CORE_FUNCTION void read_and_transform(Isa isa, const ReadTiles& a) {
  isa == Isa::avx2 ? detail::read_avx2(a) : detail::read_avx512(a);
}
TUTTI_CORE_FUNCTION void transform_and_write(Isa isa, const WriteTiles& a) {
  isa == Isa::avx2 ? detail::write_avx2(a) : detail::write_avx512(a, isa == Isa::avx512_bf16);
}
#elif defined(TUTTI_HAS_WIDE_KERNELS)
TUTTI_CORE_FUNCTION void read_and_transform(Isa, const ReadTiles& a) { detail::read_neon(a); }
TUTTI_CORE_FUNCTION void transform_and_write(Isa isa, const WriteTiles& a) { detail::write_neon(a, has_bf16(isa)); }
#else
TUTTI_CORE_FUNCTION void read_and_transform(Isa, const ReadTiles&) {
  fail<UsageError>("winograd", "AVX2, AVX-512 or NEON", "another processor");
}
TUTTI_CORE_FUNCTION void transform_and_write(Isa, const WriteTiles&) {
  fail<UsageError>("winograd", "AVX2, AVX-512 or NEON", "another processor");
}
#endif
#endif

}  // namespace tutti::cpu::winograd

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
