// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/io/protobuf.hpp>
#include <tutti/io/tfrecord.hpp>

// tf.train.Example (tensorflow/core/example/{example,feature}.proto) in protobuf's wire format, limited to what image
// records need: a map from names to lists of byte strings, floats or integers. Reading neither copies nor allocates
// memory.
namespace tutti {

namespace protobuf {

// Iterates over the fields of one message. Checks every length against the remaining bytes. Throws DataError that names
// `where`.
class Reader {
 public:
  Reader(std::span<const std::uint8_t> bytes, std::string_view where) : rest_(bytes), where_(where) {}

  using Wire = io::protobuf::Wire;
  struct Field {  // A field of a message.
    std::uint32_t number = 0;
    Wire wire = Wire::varint;
    std::uint64_t value = 0;              // of a varint or of fixed bytes
    std::span<const std::uint8_t> bytes;  // of a byte string
  };

  [[nodiscard]] bool done() const noexcept { return rest_.empty(); }
  [[nodiscard]] Field next() {
    const std::uint64_t tag = varint();
    Field f;
    const std::uint64_t number = tag >> 3;
    if (number == 0 || number > 0x1FFFFFFF) fail<DataError>(where_, "a protobuf field number of 1 to 2^29 - 1", number);
    f.number = static_cast<std::uint32_t>(number);
    f.wire = static_cast<Wire>(tag & 7U);
    switch (f.wire) {
      case Wire::varint:
        f.value = varint();
        break;
      case Wire::fixed64:
        f.value = little_endian_64(take(8).data());
        break;
      case Wire::fixed32:
        f.value = little_endian_32(take(4).data());
        break;
      case Wire::bytes:
        f.bytes = take(varint());
        break;
      default:
        fail<DataError>(where_, "protobuf wire type 0, 1, 2 or 5", tag & 7U);
    }
    return f;
  }
  [[nodiscard]] std::uint64_t varint() {
    std::uint64_t v = 0;
    for (unsigned i = 0; i < 10; ++i) {
      const std::uint8_t b = take(1)[0];
      if (i == 9 && b > 1) break;
      v |= std::uint64_t{b & 0x7FU} << (7 * i);
      if (b < 0x80) return v;
    }
    fail<DataError>(where_, "a protobuf varint of at most 64 bits", "a longer one");
  }

 private:
  [[nodiscard]] std::span<const std::uint8_t> take(std::uint64_t n) {
    if (n > rest_.size()) fail<DataError>(where_, {n, " bytes of a protobuf field"}, rest_.size());
    const auto taken = rest_.first(static_cast<std::size_t>(n));
    rest_ = rest_.subspan(static_cast<std::size_t>(n));
    return taken;
  }
  std::span<const std::uint8_t> rest_;
  std::string_view where_;
};

using io::protobuf::append_bytes;
using io::protobuf::append_varint;

}  // namespace protobuf

// One feature of an Example. Refers to the bytes that it was read from.
class Feature {
 public:
  enum class Kind : std::uint32_t { none = 0, bytes = 1, floats = 2, ints = 3 };
  Feature(Kind kind, std::span<const std::uint8_t> list, std::string_view where)
      : kind_(kind), list_(list), where_(where) {}

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  // Returns the first element of a list of byte strings (first_bytes, first_text) or of integers (first_int). Returns
  // no value if the list is empty or has another type.
  [[nodiscard]] std::optional<std::span<const std::uint8_t>> first_bytes() const {
    if (kind_ != Kind::bytes) return std::nullopt;
    for (protobuf::Reader r(list_, where_); !r.done();)
      if (const auto f = r.next(); f.number == 1 && f.wire == protobuf::Reader::Wire::bytes) return f.bytes;
    return std::nullopt;
  }
  [[nodiscard]] std::optional<std::string_view> first_text() const {
    const auto b = first_bytes();
    if (!b) return std::nullopt;
    return std::string_view(reinterpret_cast<const char*>(b->data()), b->size());
  }
  [[nodiscard]] std::optional<std::int64_t> first_int() const {
    using Wire = protobuf::Reader::Wire;
    if (kind_ != Kind::ints) return std::nullopt;
    for (protobuf::Reader r(list_, where_); !r.done();) {
      const auto f = r.next();
      if (f.number != 1) continue;
      if (f.wire == Wire::varint) return static_cast<std::int64_t>(f.value);
      if (f.wire == Wire::bytes && !f.bytes.empty())  // packed
        return static_cast<std::int64_t>(protobuf::Reader(f.bytes, where_).varint());
    }
    return std::nullopt;
  }

 private:
  Kind kind_;
  std::span<const std::uint8_t> list_;
  std::string_view where_;
};

// Calls f(name, feature) for every feature of the Example in `payload`, in the order of the bytes. If several features
// have the same name, the last one counts, as in protobuf. Throws DataError that names `where`.
template <class F>
void for_each_feature(std::span<const std::uint8_t> payload, std::string_view where, F&& f) {
  using protobuf::Reader;
  for (Reader example(payload, where); !example.done();) {
    const auto features = example.next();
    if (features.number != 1 || features.wire != Reader::Wire::bytes) continue;
    for (Reader map(features.bytes, where); !map.done();) {
      const auto entry = map.next();
      if (entry.number != 1 || entry.wire != Reader::Wire::bytes) continue;
      std::string_view name;
      std::span<const std::uint8_t> value;
      for (Reader pair(entry.bytes, where); !pair.done();) {
        const auto part = pair.next();
        if (part.wire != Reader::Wire::bytes) continue;
        if (part.number == 1) name = {reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size()};
        if (part.number == 2) value = part.bytes;
      }
      Feature::Kind kind = Feature::Kind::none;
      std::span<const std::uint8_t> list;
      for (Reader r(value, where); !r.done();) {
        const auto one = r.next();
        if (one.wire != Reader::Wire::bytes || one.number < 1 || one.number > 3) continue;
        kind = static_cast<Feature::Kind>(one.number);
        list = one.bytes;
      }
      f(name, Feature(kind, list, where));
    }
  }
}

// Builds an Example. Features keep the order in which they are added.
class ExampleWriter {
 public:
  void add(std::string_view name, std::string_view bytes) {
    std::string list;
    protobuf::append_bytes(list, 1, bytes);
    feature(name, Feature::Kind::bytes, list);
  }
  void add(std::string_view name, std::span<const std::uint8_t> bytes) {
    add(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  void add_ints(std::string_view name, std::span<const std::int64_t> values) {
    std::string packed, list;
    for (const auto v : values) protobuf::append_varint(packed, static_cast<std::uint64_t>(v));
    protobuf::append_bytes(list, 1, packed);
    feature(name, Feature::Kind::ints, list);
  }
  void add_int(std::string_view name, std::int64_t value) { add_ints(name, std::span(&value, 1)); }
  // Returns the serialized Example.
  [[nodiscard]] std::string payload() const {
    std::string out;
    protobuf::append_bytes(out, 1, features_);
    return out;
  }

 private:
  void feature(std::string_view name, Feature::Kind kind, std::string_view list) {
    std::string value, entry;
    protobuf::append_bytes(value, static_cast<std::uint32_t>(kind), list);
    protobuf::append_bytes(entry, 1, name);
    protobuf::append_bytes(entry, 2, value);
    protobuf::append_bytes(features_, 1, entry);
  }
  std::string features_;
};

}  // namespace tutti
