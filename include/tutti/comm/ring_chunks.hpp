// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

namespace tutti {

// How an all-reduce over a ring of N ranks divides its elements: one chunk for each rank, 2 (N - 1) steps. In each step
// a rank sends one chunk to the rank before it, and receives another one from the rank after it, which it sends in the
// next step. In the first N - 1 steps it adds what it receives to its own values; afterwards it keeps the sums. Chunks
// may be empty. Chunks and the order of the additions are those of Gloo's ring.
class RingChunks {
 public:
  struct Chunk {  // elements from `begin` on
    std::size_t begin = 0, size = 0;
  };

  RingChunks() = default;
  // element_bytes: bytes of an element as it is sent.
  RingChunks(int rank, int ranks, std::size_t elements, std::size_t element_bytes)
      : rank_(static_cast<std::size_t>(rank)), ranks_(static_cast<std::size_t>(ranks)), elements_(elements) {
    // As Gloo does: chunks of segments of at most 1 MiB on the wire, at least two segments for each rank.
    constexpr std::size_t segment = std::size_t{1} << 20;
    const std::size_t bytes = elements * element_bytes;
    const auto up = [](std::size_t v, std::size_t to) { return (v + to - 1) / to * to; };
    const std::size_t segments = up(std::max((bytes + segment - 1) / segment, 2 * ranks_), ranks_);
    size_ = segments / ranks_ * (up((bytes + segments - 1) / segments, element_bytes) / element_bytes);
  }

  [[nodiscard]] std::size_t steps() const noexcept { return 2 * adding_steps(); }
  [[nodiscard]] std::size_t adding_steps() const noexcept { return ranks_ - 1; }
  // Returns the elements of a chunk that is not cut off at the end of the data.
  [[nodiscard]] std::size_t largest() const noexcept { return size_; }
  [[nodiscard]] Chunk sent(std::size_t step) const noexcept { return chunk(rank_ + 1 + step); }
  [[nodiscard]] Chunk received(std::size_t step) const noexcept { return chunk(rank_ + 2 + step); }

 private:
  [[nodiscard]] Chunk chunk(std::size_t number) const noexcept {
    const std::size_t begin = std::min(elements_, number % ranks_ * size_);
    return {begin, std::min(elements_, begin + size_) - begin};
  }

  std::size_t rank_ = 0, ranks_ = 1, elements_ = 0, size_ = 0;
};

}  // namespace tutti
