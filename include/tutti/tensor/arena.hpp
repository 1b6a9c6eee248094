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

// Named slices of one allocation, with elements of one type. Each slice starts on a 64-byte boundary. The gaps between
// slices are always zero.
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
  // Returns the number of elements in slices, without the gaps.
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

// Whole slices [first, last), which are elements [begin, end). Their gradients are reduced in one operation.
struct Bucket {
  std::size_t first = 0, last = 0;
  std::size_t begin = 0, end = 0;
  std::size_t index = 0;  // number of the bucket, in the order of the arena
};

// Cuts an arena into buckets of about `bytes`. The first bucket has about `first_bytes`, so that its reduction can
// start early. Buckets end at slice ends. Slices that are not trained are last and in no bucket, because they get no
// gradients.
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
