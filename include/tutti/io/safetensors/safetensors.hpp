// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/shape.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/safetensors/safetensors_types.hpp>
#include <tutti/io/safetensors/tensor_record.hpp>

namespace tutti::io {

// One tensor of a safetensors file, of any type and rank that the format has.
struct SafetensorsEntry {
  std::string name;
  const SafetensorsType* type = nullptr;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// Reads a safetensors file (https://github.com/huggingface/safetensors): 8 bytes header length, little-endian; a JSON
// header; the tensors' bytes, without gaps, in the order of their offsets. Checks everything when the file is opened,
// and throws DataError that says what is wrong.
class Safetensors {
 public:
  static constexpr std::uint64_t most_header_bytes = 100'000'000;

  // Makes an object without tensors.
  Safetensors() = default;
  // Maps the file. The tensors' bytes stay in the mapping, which lives as long as this object, or the object to which
  // this one is moved.
  [[nodiscard]] static Safetensors open(const Path& path) { return own(MappedFile(path), path.string()); }
  [[nodiscard]] static Safetensors own(MappedFile file, std::string where) {
    Safetensors result(file.bytes(), std::move(where));
    result.file_ = std::move(file);
    return result;
  }
  // Reads from memory, which must outlive this object. `where` names it in messages.
  [[nodiscard]] static Safetensors view(std::span<const std::byte> bytes, std::string where = "memory") {
    return {bytes, std::move(where)};
  }

  // The tensors, in the order of the file.
  [[nodiscard]] const std::vector<SafetensorsEntry>& entries() const noexcept { return entries_; }
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& metadata() const noexcept { return metadata_; }
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const noexcept {
    for (const auto& e : entries_)
      if (e.name == name) return &e;
    return nullptr;
  }

  // Throws DataError if there is no such tensor, or if tutti does not support its type or rank.
  [[nodiscard]] TensorRecord record(std::string_view name) const {
    const SafetensorsEntry* e = find(name);
    if (e == nullptr) fail<DataError>(where(), {"a tensor '", name, "'"}, "no tensor of that name");
    return record_of(*e);
  }
  [[nodiscard]] std::vector<TensorRecord> records() const {
    std::vector<TensorRecord> out;
    out.reserve(entries_.size());
    for (const auto& e : entries_) out.push_back(record_of(e));
    return out;
  }

 private:
  Safetensors(std::span<const std::byte> bytes, std::string name) : name_(std::move(name)) { parse(bytes); }

  [[nodiscard]] std::string where() const { return "safetensors " + name_; }

  // Returns whether a file that begins with these 8 bytes is from torch.save(), which writes a ZIP archive or, in its
  // older form, a pickle of protocol 2.
  [[nodiscard]] static bool is_pytorch_file(std::uint64_t begin) {
    return (begin & 0xffffffffU) == 0x04034b50U || (begin & 0xffffU) == 0x0280U;
  }

  void parse(std::span<const std::byte> bytes) {
    static_assert(std::endian::native == std::endian::little, "tensors are viewed in place");
    std::uint64_t header_bytes = 0;
    if (bytes.size() < sizeof header_bytes)
      fail<DataError>(where(), "at least 8 bytes", bytes.size(), "the file is truncated");
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    bytes = bytes.subspan(sizeof header_bytes);
    if (header_bytes > most_header_bytes)
      fail<DataError>(where(), "a header of at most 100000000 bytes", header_bytes,
                      is_pytorch_file(header_bytes)
                          ? "this is a file of torch.save(); tools/pytorch_weights.py converts it"
                          : "this is not a safetensors file");
    if (header_bytes > bytes.size())
      fail<DataError>(where(), {"a header of ", header_bytes, " bytes"}, {bytes.size(), " bytes after its length"},
                      "the file is truncated");
    const auto data = bytes.subspan(static_cast<std::size_t>(header_bytes));
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(header_bytes));
    if (!text.starts_with('{')) fail<DataError>(where(), "a header that begins with '{'", "another byte");
    const Json header = parse_json(text, name_ + " header", {.bytes = most_header_bytes});
    entries_.reserve(header.as_object().size());
    std::vector<Range> ranges;
    for (const auto& [key, value] : header.as_object()) {
      if (key == "__metadata__") {
        for (const auto& [k, v] : value.as_object(where() + " __metadata__"))
          metadata_.emplace_back(k, v.as_string(where() + " __metadata__ " + k));
      } else {
        ranges.push_back(add_entry(key, value, data.size()));
      }
    }
    place(ranges, data);
  }

  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::size_t entry = 0;
  };

  Range add_entry(const std::string& name, const Json& value, std::size_t data_bytes) {
    const std::string at = where() + " tensor '" + name + "'";
    SafetensorsEntry e;
    e.name = name;
    for (const auto& [key, unused] : value.as_object(at))
      if (key != "dtype" && key != "shape" && key != "data_offsets")
        fail<DataError>(at, "dtype, shape and data_offsets", {"'", key, "'"});
    const std::string& dtype = value.at("dtype", at).as_string(at + " dtype");
    e.type = safetensors_type(dtype);
    if (e.type == nullptr) fail<DataError>(at, "a data type of the format", {"'", dtype, "'"});
    for (const Json& extent : value.at("shape", at).as_array(at + " shape"))
      e.shape.push_back(extent.as_integer(at + " shape"));
    const auto& offsets = value.at("data_offsets", at).as_array(at + " data_offsets");
    if (offsets.size() != 2) fail<DataError>(at, "two data_offsets", offsets.size());
    const std::int64_t begin = offsets[0].as_integer(at + " data_offsets");
    const std::int64_t end = offsets[1].as_integer(at + " data_offsets");
    if (begin < 0 || end < begin || static_cast<std::uint64_t>(end) > data_bytes)
      fail<DataError>(at, {"data_offsets within the ", data_bytes, " bytes of data"}, {begin, " to ", end},
                      "the file is truncated or damaged");
    const auto length = static_cast<std::uint64_t>(end - begin);
    const auto needed = safetensors_bytes(*e.type, span_of(e.shape));
    if (!needed || *needed != length)
      fail<DataError>(at, needed ? std::to_string(*needed) + " bytes for its type and shape" : "a shape of valid size",
                      {length, " bytes"});
    entries_.push_back(std::move(e));
    return {static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end), entries_.size() - 1};
  }

  // Sorts the entries by offset and sets their bytes.
  void place(std::vector<Range>& ranges, std::span<const std::byte> data) {
    std::sort(ranges.data(), ranges.data() + ranges.size(), [](const Range& a, const Range& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end != b.end ? a.end < b.end : a.entry < b.entry;
    });
    std::vector<SafetensorsEntry> ordered;
    ordered.reserve(entries_.size());
    std::uint64_t next = 0;
    for (const Range& r : ranges) {
      SafetensorsEntry& e = entries_[r.entry];
      if (r.begin != next)
        fail<DataError>({where(), " tensor '", e.name, "'"}, {"bytes from ", next, " on"}, r.begin,
                        r.begin < next ? "two tensors overlap" : "the format allows no gap");
      next = r.end;
      e.bytes = data.subspan(static_cast<std::size_t>(r.begin), static_cast<std::size_t>(r.end - r.begin));
      ordered.push_back(std::move(e));
    }
    if (next != data.size())
      fail<DataError>(where(), {next, " bytes of data"}, data.size(),
                      "bytes that belong to no tensor follow the last one");
    entries_ = std::move(ordered);
  }

  [[nodiscard]] TensorRecord record_of(const SafetensorsEntry& e) const {
    const std::string at = where() + " tensor '" + e.name + "'";
    if (!e.type->dtype)
      fail<DataError>(at, "F32, BF16, F64, U8, I32 or I64", e.type->name,
                      "convert the tensor to one of these types first");
    if (e.shape.size() > static_cast<std::size_t>(Shape::max_rank))
      fail<DataError>(at, "at most 5 dimensions", e.shape.size(), "reshape the tensor first");
    return {e.name, *e.type->dtype, Shape(span_of(e.shape)), e.bytes};
  }

  std::string name_;
  MappedFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

}  // namespace tutti::io
