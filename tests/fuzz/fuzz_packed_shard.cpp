// SPDX-License-Identifier: MIT
// Reads any bytes as a packed shard, unchanged and with corrected checksums. The result is either DataError or images
// within the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include <tutti/data/records/packed_shard.hpp>

#include "fuzz/memory_file.hpp"

namespace fuzz::packed_shard {

void read_all(std::span<const std::uint8_t> bytes) {
  const tutti::test::MemoryFile file(bytes);
  try {
    const tutti::PackedShards p({file.path()});
    std::vector<std::uint8_t> image;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(p.size(), 100); ++i) try {
        const auto label = p.read(i, image);
        if (label < 0 || label >= p.classes() || image.empty() || image.size() > bytes.size()) std::abort();
      } catch (const tutti::DataError&) {
      }
  } catch (const tutti::DataError&) {
  }
}

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti;
  read_all({data, size});
  if (size < packed::header_bytes + packed::footer_bytes) return 0;
  std::vector<std::uint8_t> b(data, data + size);
  std::uint8_t* footer = b.data() + size - packed::footer_bytes;
  const auto crc = [](const std::uint8_t* p, std::size_t n, std::uint32_t before = 0) {
    return io::crc32c(std::as_bytes(std::span(p, n)), before);
  };
  const auto put = [](std::uint8_t* p, std::uint32_t v) {
    for (int i = 0; i < 4; ++i) p[i] = static_cast<std::uint8_t>(v >> (8 * i));
  };
  std::memcpy(b.data(), packed::magic.data(), 8);
  std::memcpy(footer + 24, packed::end_magic.data(), 8);
  const std::uint64_t names = little_endian_32(b.data() + 32), index = little_endian_64(footer + 8);
  if (names <= size - packed::header_bytes)
    put(b.data() + 36, crc(b.data() + packed::header_bytes, static_cast<std::size_t>(names), crc(b.data(), 36)));
  if (index <= size - packed::footer_bytes)
    put(footer + 16, crc(b.data() + index, size - packed::footer_bytes - static_cast<std::size_t>(index)));
  put(footer + 20, crc(footer, 20));
  read_all(b);
  return 0;
}

}  // namespace fuzz::packed_shard
