// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

// Gradients in two bits each, as MXNet compresses them for its servers (Strom, "Scalable distributed DNN training using
// commodity GPU cloud computing", 2015). A worker adds each gradient to the rest that it kept from earlier steps. If
// the sum reaches the threshold t, or -t, the worker sends exactly this value and subtracts it; otherwise it sends 0. A
// value that was not sent is never lost, only late.
//
// Bytes: t as f32, then four numbers a byte, the first in its highest bits: 11 is t, 10 is -t, 00 is 0. 01, which MXNet
// does not use, is NaN, so that a gradient that is not finite is noticed as without compression. The last byte is
// filled with zeros, to whole words of 16 numbers.
namespace tutti::ps::two_bit {

[[nodiscard]] constexpr std::size_t bytes_of(std::size_t numbers) noexcept {
  return sizeof(float) + (numbers + 15) / 16 * 4;
}

namespace detail {
enum Code : unsigned { zero = 0, not_a_number = 1, minus = 2, plus = 3 };
}

// kept: the unsent rest of each gradient; this function changes it. to: bytes_of(gradients.size()) bytes.
inline void pack(std::span<const float> gradients, std::span<float> kept, float threshold, std::byte* to) noexcept {
  std::memcpy(to, &threshold, sizeof threshold);
  std::memset(to + sizeof threshold, 0, bytes_of(gradients.size()) - sizeof threshold);
  auto* const codes = reinterpret_cast<unsigned char*>(to + sizeof threshold);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    float& r = kept[i];
    r += gradients[i];
    unsigned code = detail::zero;
    if (!std::isfinite(r)) {
      code = detail::not_a_number;
    } else if (r >= threshold) {
      code = detail::plus;
      r -= threshold;
    } else if (r <= -threshold) {
      code = detail::minus;
      r += threshold;
    }
    codes[i / 4] = static_cast<unsigned char>(codes[i / 4] | code << (6 - 2 * (i % 4)));
  }
}

// Returns whether pack() can have written these bytes for this many numbers.
[[nodiscard]] inline bool is_packed(std::span<const std::byte> from, std::size_t numbers) noexcept {
  if (from.size() != bytes_of(numbers)) return false;
  float threshold = 0;
  std::memcpy(&threshold, from.data(), sizeof threshold);
  return std::isfinite(threshold) && threshold > 0;
}
// from: bytes for which is_packed(from, to.size()) is true.
inline void unpack(std::span<const std::byte> from, std::span<float> to) noexcept {
  float threshold = 0;
  std::memcpy(&threshold, from.data(), sizeof threshold);
  const std::array<float, 4> values{0, std::numeric_limits<float>::quiet_NaN(), -threshold, threshold};
  const auto* const codes = reinterpret_cast<const unsigned char*>(from.data() + sizeof threshold);
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = values[codes[i / 4] >> (6 - 2 * (i % 4)) & 3U];
}

// The unsent rest of each bucket's gradients on a worker.
class Residuals {
 public:
  // Returns the rest for a bucket's gradients, initially zeros.
  [[nodiscard]] std::span<float> of(std::size_t bucket, std::size_t numbers) {
    if (buckets_.size() <= bucket) buckets_.resize(bucket + 1);
    std::vector<float>& kept = buckets_[bucket];
    if (kept.size() != numbers) kept.assign(numbers, 0.F);
    return kept;
  }
  void forget() noexcept { buckets_.clear(); }

 private:
  std::vector<std::vector<float>> buckets_;
};

// Checks the threshold of an option, in the gradients' unit. 0: gradients are sent unchanged.
inline void require_threshold(float t) {
  if (!std::isfinite(t) || t < 0)
    fail<UsageError>("gradient compression", "a threshold above 0, or 0 for no compression", t);
}

}  // namespace tutti::ps::two_bit
