// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/core/isa.hpp>
#include <tutti/graph/ops/window.hpp>

namespace tutti::cpu {

// The algorithm for convolutions: chosen by the table below; as sums of products; Winograd's if there is code for it;
// or the faster of the two, measured when a plan is made.
enum class ConvolutionAlgorithm : std::uint8_t { automatic, direct, winograd, tune };

[[nodiscard]] constexpr std::string_view name_of(ConvolutionAlgorithm a) noexcept {
  switch (a) {
    case ConvolutionAlgorithm::automatic:
      return "auto";
    case ConvolutionAlgorithm::direct:
      return "direct";
    case ConvolutionAlgorithm::winograd:
      return "winograd";
    case ConvolutionAlgorithm::tune:
      return "tune";
  }
  return "?";
}

// Parses "auto", "direct", "winograd" or "tune". Throws UsageError for another word.
[[nodiscard]] inline ConvolutionAlgorithm parse_convolution_algorithm(std::string_view word) {
  if (word == "auto") return ConvolutionAlgorithm::automatic;
  if (word == "direct") return ConvolutionAlgorithm::direct;
  if (word == "winograd") return ConvolutionAlgorithm::winograd;
  if (word == "tune") return ConvolutionAlgorithm::tune;
  fail<UsageError>("convolution", "auto, direct, winograd or tune", {"'", word, "'"});
}

}  // namespace tutti::cpu

namespace tutti::cpu::winograd {

// A convolution [outputs, channels, 3, 3] of images [channels, h, w].
struct Problem {
  op::Window window;
  std::int64_t channels = 0, outputs = 0, h = 0, w = 0;
  bool bf16 = false;
};

// Returns whether there is code for it.
[[nodiscard]] inline bool has_code([[maybe_unused]] Isa isa, [[maybe_unused]] const Problem& p) {
#ifdef TUTTI_HAS_WIDE_KERNELS
  const op::Window& o = p.window;
  return isa != Isa::baseline && o.kernel_h == 3 && o.kernel_w == 3 && o.padding == 1 &&
         (o.stride == 1 || o.stride == 2);
#else
  return false;
#endif
}

// Returns whether it is faster than direct in all three passes, as measured in bench/RESULTS.md. With fewer
// channels most of the time goes into the transforms. With stride 2 it takes 81 products instead of 144, so incomplete
// tiles of 4x4 outputs pay only with many channels, and products of pairs in bf16 are as fast. With products of pairs
// in bf16, direct convolutions are as fast up to 16 channels. AVX2 has no such products, and a library's bf16 code on
// AVX2 was not measured. NEON follows the rules of AVX-512: nothing was measured on it.
[[nodiscard]] inline bool is_faster(Isa isa, const Problem& p) {
  if (p.bf16 && (isa == Isa::avx2 || p.window.stride == 2)) return false;
  if (p.window.stride == 2 && p.channels * p.outputs < 512 * 512) {
    const auto filled = [](std::int64_t n) { return (n + 3) / 4 * 4; };
    const std::int64_t h = p.window.out_h(p.h), w = p.window.out_w(p.w);
    if (8 * filled(h) * filled(w) > 9 * h * w) return false;
  }
  const std::int64_t least = p.bf16 ? 32 : 16;
  return p.channels >= least && p.outputs >= least;
}

// Returns whether a convolution uses Winograd's algorithm, for all choices except tune.
[[nodiscard]] inline bool uses(ConvolutionAlgorithm a, Isa isa, const Problem& p) {
  return a != ConvolutionAlgorithm::direct && has_code(isa, p) &&
         (a == ConvolutionAlgorithm::winograd || is_faster(isa, p));
}

// Deep convolutions have few tiles and many weights, and transformed weights take four times as much memory. It is
// faster to transform them when they are used, once for all tiles, than to read them from memory for each tile, or to
// write them for a single use.
[[nodiscard]] constexpr bool is_deep(std::int64_t channels, std::int64_t outputs) {
  return channels * outputs >= 256 * 256;
}

}  // namespace tutti::cpu::winograd
