// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/core/isa.hpp>
#include <tutti/graph/ops/window.hpp>

namespace tutti::cpu {

// How convolutions are computed: by the table below; as sums of products; by Winograd's algorithm wherever there is
// code for it; by what is measured to be the faster of the two when a plan is made.
enum class ConvolutionAlgorithm : std::uint8_t { automatic, direct, winograd, tune };

// Of "auto", "direct", "winograd", "tune". UsageError for another word.
[[nodiscard]] inline ConvolutionAlgorithm parse_convolution_algorithm(std::string_view word) {
  if (word == "auto") return ConvolutionAlgorithm::automatic;
  if (word == "direct") return ConvolutionAlgorithm::direct;
  if (word == "winograd") return ConvolutionAlgorithm::winograd;
  if (word == "tune") return ConvolutionAlgorithm::tune;
  fail<UsageError>("convolution", "auto, direct, winograd or tune", std::string("'").append(word).append("'"));
}

}  // namespace tutti::cpu

namespace tutti::cpu::winograd {

// A convolution [outputs, channels, 3, 3] of images [channels, h, w].
struct Problem {
  op::Window window;
  std::int64_t channels = 0, outputs = 0, h = 0, w = 0;
  bool bf16 = false;
};

// Whether there is code for it.
[[nodiscard]] inline bool has_code(Isa isa, const Problem& p) {
#if defined(__x86_64__)
  const op::Window& o = p.window;
  return isa != Isa::baseline && o.kernel_h == 3 && o.kernel_w == 3 && o.padding == 1 &&
         (o.stride == 1 || o.stride == 2);
#else
  return false;
#endif
}

// Whether it is faster than direct, in all three passes, as bench/RESULTS.md has it measured. With fewer channels
// most of the time goes into the transforms. With stride 2 it takes 81 products for 144, so uneven tiles of 4x4 outputs
// are worth it with many channels only, and products of pairs in bf16 are as fast. Where there are products of pairs in
// bf16 direct ones are as fast up to 16 channels; on AVX2 there are none, and what a library makes of bf16 there was
// not measured.
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

// For all but tune.
[[nodiscard]] inline bool uses(ConvolutionAlgorithm a, Isa isa, const Problem& p) {
  return a != ConvolutionAlgorithm::direct && has_code(isa, p) &&
         (a == ConvolutionAlgorithm::winograd || is_faster(isa, p));
}

// Deep convolutions have few tiles and many weights, which once transformed are four times as many: they are better
// transformed where they are used, once for all tiles, than read from memory by each.
[[nodiscard]] constexpr bool is_deep(std::int64_t channels, std::int64_t outputs) {
  return channels * outputs >= 256 * 256;
}

}  // namespace tutti::cpu::winograd
