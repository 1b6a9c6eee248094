// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/safetensors/safetensors_types.hpp>
#include <tutti/io/safetensors/tensor_record.hpp>

namespace tutti::io {

using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

// Writes a safetensors file piece by piece. `sink(std::span<const std::byte>)` is called with the 8 bytes of the
// header's length, the header, and each tensor's bytes. The header is padded to 8 bytes and wider types come first
// (otherwise in the given order), so that every tensor is aligned. Throws UsageError if a name occurs twice, or if
// bytes do not match type and shape.
template <class Sink>
requires std::invocable<Sink&, std::span<const std::byte>>
void write_safetensors(Sink&& sink, std::span<const TensorRecord> records, const SafetensorsMetadata& metadata = {}) {
  std::vector<const TensorRecord*> order;
  std::set<std::string> names{"__metadata__"};
  for (const TensorRecord& r : records) {
    const std::string where = "safetensors tensor '" + r.name + "'";
    if (!names.insert(r.name).second) fail<UsageError>(where, "each name once", "the name twice");
    const auto needed = safetensors_bytes(safetensors_type(r.dtype), r.shape.dims());
    if (!needed || *needed != r.bytes.size())
      fail<UsageError>(where, needed ? std::to_string(*needed) + " bytes" : "a shape of valid size",
                       {r.bytes.size(), " bytes for ", to_string(r.shape)});
  }
  for (const std::size_t width : {8U, 4U, 2U, 1U})
    for (const TensorRecord& r : records)
      if (size_of(r.dtype) == width) order.push_back(&r);

  Json::Object header;
  if (!metadata.empty()) {
    Json map = Json::object();
    for (const auto& [key, value] : metadata) {
      if (map.find(key) != nullptr) fail<UsageError>("safetensors metadata", "each key once", {"'", key, "' again"});
      map.set(key, value);
    }
    header.emplace_back("__metadata__", std::move(map));
  }
  std::int64_t offset = 0;
  for (const TensorRecord* r : order) {
    Json::Array shape;
    for (const std::int64_t extent : r->shape.dims()) shape.emplace_back(extent);
    const auto end = offset + static_cast<std::int64_t>(r->bytes.size());
    header.emplace_back(r->name, Json::object({{"dtype", safetensors_type(r->dtype).name},
                                               {"shape", std::move(shape)},
                                               {"data_offsets", Json::array({offset, end})}}));
    offset = end;
  }
  std::string text = write_json(Json(std::move(header)));
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  sink(std::as_bytes(std::span(&length, 1)));
  sink(std::as_bytes(std::span(text.data(), text.size())));
  for (const TensorRecord* r : order) sink(r->bytes);
}

inline void write_safetensors(FileWriter& writer, std::span<const TensorRecord> records,
                              const SafetensorsMetadata& metadata = {}) {
  write_safetensors([&](std::span<const std::byte> bytes) { writer.write(bytes); }, records, metadata);
}

// Writes the complete file. After an error the old file is unchanged (atomic_write_file).
inline void save_safetensors(const Path& path, std::span<const TensorRecord> records,
                             const SafetensorsMetadata& metadata = {}) {
  atomic_write_file(path, [&](FileWriter& writer) { write_safetensors(writer, records, metadata); });
}

}  // namespace tutti::io
