// SPDX-License-Identifier: MIT
// Reads any bytes as an index file, unchanged and with corrected checksum and file marks. The result is either no
// index, or positions within the files.
#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include <tutti/data/records/record_index.hpp>

#include "fuzz/memory_file.hpp"

namespace fuzz::record_index {

void load(const tutti::ShardFiles& files, std::span<const std::uint8_t> bytes) {
  const tutti::test::MemoryFile file(bytes);
  const auto index = tutti::RecordIndex::load(tutti::io::Path(file.path()), files, tutti::RecordIndex::Kind::tfrecord);
  if (!index) return;
  if (index->size() < 1) std::abort();
  for (std::int64_t i = 0; i < index->size(); ++i) {
    const auto place = index->place(i);
    const auto span = index->span(i);
    if (place.file >= files.count() || span.offset + span.length > files.bytes(place.file)) std::abort();
  }
}

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti;
  static const std::vector<std::uint8_t> content(1000);
  static const test::MemoryFile a(content), b(std::span(content).first(100));
  static const ShardFiles files({a.path(), b.path()});
  load(files, {data, size});
  constexpr std::size_t footer = 16, entry = 32, files_bytes = 2 * entry;
  if (size < 16 + files_bytes + footer) return 0;
  std::vector<std::uint8_t> bytes(data, data + size);
  const auto put = [](std::uint8_t* p, std::uint64_t v, int n) {
    for (int i = 0; i < n; ++i) p[i] = static_cast<std::uint8_t>(v >> (8 * i));
  };
  for (std::size_t f = 0; f < 2; ++f) {
    std::uint8_t* p = bytes.data() + size - footer - files_bytes + f * entry;
    put(p, files.bytes(f), 8);
    put(p + 8, static_cast<std::uint64_t>(files.changed(f)), 8);
    put(p + 24, io::crc32c(files.path(f).filename().string()), 4);
  }
  put(bytes.data() + size - 4, io::crc32c(std::as_bytes(std::span(bytes).first(size - 4))), 4);
  load(files, bytes);
  return 0;
}

}  // namespace fuzz::record_index
