// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti {

// The view of an IDX file of bytes, the format of MNIST: two zero bytes, type 8 (u8), the number of extents, the
// extents as big-endian u32, then the elements.
struct IdxView {
  std::vector<std::int64_t> extents;
  std::span<const std::uint8_t> data;
};

// Reads the header of `file`. Throws DataError with the name `where` unless the file has `rank` extents, each 1 or
// more, and as many bytes as their product.
[[nodiscard]] inline IdxView parse_idx(std::span<const std::uint8_t> file, std::size_t rank, std::string_view where) {
  const std::size_t header = 4 + 4 * rank;
  if (file.size() < header)
    fail<DataError>(where, {"an IDX header of ", header, " bytes"}, {"a file of ", file.size()},
                    "the file is truncated");
  if (file[0] != 0 || file[1] != 0 || file[2] != 8 || file[3] != rank) {
    std::string magic;
    for (std::size_t i = 0; i < 4; ++i) {
      if (i > 0) magic += ' ';
      magic += std::to_string(file[i]);
    }
    fail<DataError>(where, {"an IDX file of bytes, starting with 0 0 8 ", rank}, magic);
  }
  IdxView view;
  std::uint64_t bytes = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    const std::uint8_t* p = file.data() + 4 + 4 * i;
    const std::uint32_t extent =
        std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
    if (extent == 0) fail<DataError>(where, "extents of 1 or more", "0");
    view.extents.push_back(extent);
    if (bytes > file.size()) continue;  // the file is too short already; the product must not overflow
    bytes *= extent;
  }
  const std::uint64_t has = file.size() - header;
  if (bytes != has)
    fail<DataError>(where,
                    {(bytes > file.size() ? "more than " + std::to_string(file.size()) : std::to_string(bytes)),
                     " bytes of elements, as its header says"},
                    has, bytes > has ? "the file is truncated" : "the file is too long");
  view.data = file.subspan(header);
  return view;
}

}  // namespace tutti
