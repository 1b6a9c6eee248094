// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/core/isa.hpp>
#include <tutti/graph/ops/window.hpp>

// Clang's asm accepts no registers wider than the target of the file has, and no instructions that this target lacks.
#if defined(TUTTI_HAS_WIDE_KERNELS) && !defined(__clang__)
#define TUTTI_HAS_PAIRS
#endif
#if defined(__x86_64__)
#define TUTTI_TARGET_PAIRS TUTTI_TARGET_AVX512_BF16
#else
#define TUTTI_TARGET_PAIRS
#endif

// Direct convolutions by products of pairs in bf16.
namespace tutti::cpu::pairs {

inline constexpr int lanes = 16;  // floats of a register, or of four registers of NEON

enum class Pass : std::uint8_t { forward, backward_data, backward_weights };

// A convolution of images [channels, h, w] to `outputs` channels, in bf16.
struct Problem {
  op::Window window;
  std::int64_t channels = 0, outputs = 0;
};

// Returns whether there is code for it.
[[nodiscard]] inline bool has_code([[maybe_unused]] Isa isa, [[maybe_unused]] Pass pass,
                                   [[maybe_unused]] const Problem& p) {
#ifdef TUTTI_HAS_PAIRS
  const op::Window& o = p.window;
  return has_bf16(isa) && o.kernel_h == 3 && o.kernel_w == 3 && o.padding == 1 &&
         (o.stride == 1 || (o.stride == 2 && pass == Pass::backward_weights));
#else
  return false;
#endif
}

// Returns whether it is faster than a library's code and than Winograd's algorithm, as measured in bench/RESULTS.md: up
// to 16 channels. Gradients of the weights are not faster if there are fewer inputs than a register holds. The forward
// pass with stride 2 was not faster either, so there is no code for it.
[[nodiscard]] inline bool is_faster(Isa isa, Pass pass, const Problem& p) {
  if (!has_code(isa, pass, p) || p.channels > lanes) return false;
  if (pass == Pass::backward_weights && p.channels <= lanes / 2) return false;
  return p.outputs <= (p.window.stride == 1 ? lanes : 2 * lanes);
}

}  // namespace tutti::cpu::pairs
