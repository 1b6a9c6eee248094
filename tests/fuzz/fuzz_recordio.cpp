// SPDX-License-Identifier: MIT
// Reads any bytes as a RecordIO file, and the bytes after the first byte 255 as an .idx file. The result is either
// DataError or records within the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <tutti/data/records/recordio_reader.hpp>

#include "fuzz/memory_file.hpp"

namespace fuzz::recordio {

void read_all(const tutti::ShardFiles& files, const std::vector<tutti::RecordSpan>& spans) {
  for (const auto& span : spans) {
    std::vector<std::uint8_t> frame(span.length);
    files.read(0, span.offset, frame);
    try {
      tutti::recordio::unframe(frame, "fuzz");
      if (frame.size() + 8 > span.length) std::abort();
      // If the records are written again, the bytes are the same, except for padding and for records that were split
      // without need.
      std::string out;
      tutti::recordio::append_record(out, {reinterpret_cast<const char*>(frame.data()), frame.size()});
      if (out.size() % 4 != 0) std::abort();
      std::vector<std::uint8_t> again(out.begin(), out.end());
      tutti::recordio::unframe(again, "fuzz");
      if (again != frame) std::abort();
      const auto image = tutti::recordio::parse_image(frame, "fuzz");
      if (image.encoded.size() + 24 > frame.size()) std::abort();
    } catch (const tutti::DataError&) {
    }
  }
}

int run(const std::uint8_t* data, std::size_t size) {
  std::span<const std::uint8_t> rec(data, size), list;
  if (size > 0 && data[0] == 255) {
    const auto end = static_cast<std::size_t>(std::find(data + 1, data + size, std::uint8_t{255}) - data);
    list = rec.subspan(1, end - 1);
    rec = rec.subspan(end);
    if (!rec.empty()) rec = rec.subspan(1);
  }
  const tutti::test::MemoryFile rec_file(rec), list_file(list);
  const tutti::ShardFiles files({rec_file.path(), list_file.path()});
  try {
    const auto spans = tutti::recordio::scan(files, 0);
    std::uint64_t end = 0;
    for (const auto& s : spans) {
      if (s.offset != end) std::abort();
      end += s.length;
    }
    if (end != rec.size()) std::abort();
    read_all(files, spans);
  } catch (const tutti::DataError&) {
  }
  try {
    auto spans = tutti::recordio::scan_listed(files, 0, 1);
    for (const auto& s : spans)
      if (s.offset + s.length > rec.size()) std::abort();
    if (spans.size() > 16) spans.resize(16);
    read_all(files, spans);
  } catch (const tutti::DataError&) {
  }
  return 0;
}

}  // namespace fuzz::recordio
