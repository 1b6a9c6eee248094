// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <tutti/data/batch_source.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/engine/metrics.hpp>

namespace tutti {

// Returns the rows [begin, end) of a batch in the form that the executor takes.
[[nodiscard]] inline BatchView view_of(const Batch& b, std::int64_t begin, std::int64_t end) {
  BatchView v;
  v.rows = end - begin;
  if (b.resident != nullptr) {
    v.resident = b.resident;
    v.windows = b.windows.data() + begin;
  } else {
    if (b.schema != nullptr) v.size = {b.schema->height, b.schema->width};
    const std::size_t image_bytes = b.count > 0 ? b.images.size() / static_cast<std::size_t>(b.count) : 0;
    v.images = b.images.data() + static_cast<std::size_t>(begin) * image_bytes;
    v.labels =
        b.mixed.empty() ? b.labels.data() + begin : reinterpret_cast<const std::int32_t*>(b.mixed.data() + begin);
  }
  return v;
}

}  // namespace tutti
