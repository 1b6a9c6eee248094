// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

// Which batch norms run in one kernel: those of which the GPU's L2 cache holds all data.
namespace tutti::cuda {

// Returns the bytes of all tensors that the passes of a batch norm move: x, y and the residual. tensor: the bytes of x.
[[nodiscard]] constexpr std::int64_t norm_bytes(std::int64_t tensor, bool residual) noexcept {
  return tensor * (residual ? 3 : 2);
}
// The same for the gradient: x, the gradient, which has two parts if `second`, its masked sum if the op keeps it, and
// dx.
[[nodiscard]] constexpr std::int64_t norm_backward_bytes(std::int64_t tensor, bool second, bool keep) noexcept {
  return tensor * (3 + (second ? 1 : 0) + (keep ? 1 : 0));
}
// cache: bytes of the L2 cache.
[[nodiscard]] constexpr bool fits_cache(std::int64_t bytes, std::int64_t cache) noexcept { return bytes <= cache; }

}  // namespace tutti::cuda
