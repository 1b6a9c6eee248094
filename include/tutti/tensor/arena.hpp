// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/shape.hpp>

namespace tutti {

// A named part of an arena. Offsets and counts are in elements of the arena's type.
struct Slice {
  std::string name;
  Shape shape;
  std::size_t offset = 0;
  std::size_t count = 0;
  bool trainable = true;
  bool decay = true;    // weight decay applies; false for batch-norm parameters and biases
  double lr_scale = 1;  // multiplies the learning rate
};

// Named slices of one allocation of one type. Each slice starts on a 64-byte boundary. The gaps are zero and stay zero.
struct ArenaLayout {
  DType dtype = DType::f32;
  std::vector<Slice> slices;
  std::size_t count = 0;  // elements, including gaps

  void append(std::string name, const Shape& shape, bool trainable = true, bool decay = true, double lr_scale = 1) {
    const std::size_t n = static_cast<std::size_t>(shape.numel());
    slices.push_back({std::move(name), shape, count, n, trainable, decay, lr_scale});
    const std::size_t step = 64 / size_of(dtype);
    count += (n + step - 1) / step * step;
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return count * size_of(dtype); }
  // Returns the number of elements without the gaps.
  [[nodiscard]] std::size_t numel() const noexcept {
    std::size_t n = 0;
    for (const auto& s : slices) n += s.count;
    return n;
  }
  [[nodiscard]] const Slice* find(const std::string& name) const noexcept {
    for (const auto& s : slices)
      if (s.name == name) return &s;
    return nullptr;
  }
};

// A run of whole slices [first, last) with gradients that become final together; elements [begin, end).
struct Bucket {
  std::size_t first = 0, last = 0;
  std::size_t begin = 0, end = 0;
  std::size_t index = 0;  // of the bucket
};

// Cuts an arena into buckets of about `bytes`, the first of about `first_bytes`, so that the first reduction can start
// early. Buckets end at slice ends. Slices that are not trained come last and are in no bucket, because they never
// become ready.
[[nodiscard]] inline std::vector<Bucket> make_buckets(const ArenaLayout& layout, std::size_t bytes,
                                                      std::size_t first_bytes) {
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < layout.slices.size() && layout.slices[i].trainable; ++i) {
    const std::size_t end = i + 1 < layout.slices.size() ? layout.slices[i + 1].offset : layout.count;
    const std::size_t limit = (buckets.size() <= 1 ? first_bytes : bytes) / size_of(layout.dtype);
    if (buckets.empty() || buckets.back().end - buckets.back().begin >= limit)
      buckets.push_back({i, i + 1, layout.slices[i].offset, end, buckets.size()});
    else {
      buckets.back().last = i + 1;
      buckets.back().end = end;
    }
  }
  return buckets;
}

}  // namespace tutti
