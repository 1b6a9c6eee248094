// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/io/crc32c.hpp>

namespace tutti::io {

// Appends the lowest `count` bytes of v, little-endian.
inline void append_little_endian(std::string& out, std::uint64_t v, int count) {
  for (int i = 0; i < count; ++i) out.push_back(static_cast<char>((v >> (8 * i)) & 0xFFU));
}

// Appends one record in TFRecord's framing: length (8 bytes), masked CRC-32C of the length, the payload, its masked
// CRC-32C (tensorflow/core/lib/io/record_writer.h).
inline void append_tfrecord(std::string& out, std::string_view payload) {
  const std::size_t start = out.size();
  append_little_endian(out, payload.size(), 8);
  append_little_endian(out, mask_crc32c(crc32c(std::string_view(out).substr(start, 8))), 4);
  out.append(payload);
  append_little_endian(out, mask_crc32c(crc32c(payload)), 4);
}

}  // namespace tutti::io
