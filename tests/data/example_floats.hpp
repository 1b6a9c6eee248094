// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <tutti/data/records/example_proto.hpp>
#include <tutti/io/tfrecord.hpp>

namespace tutti::test {

// Returns the Example with one more feature at its end: a list of floats. Files that other programs write contain such
// lists; files that tutti writes do not.
inline std::string with_floats(const std::string& example, std::string_view name, std::span<const float> values) {
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(example.data()), example.size());
  const auto features = protobuf::Reader(bytes, "test").next().bytes;
  std::string packed, list, value, entry, all(features.begin(), features.end()), out;
  for (const float v : values) io::append_little_endian(packed, std::bit_cast<std::uint32_t>(v), 4);
  protobuf::append_bytes(list, 1, packed);
  protobuf::append_bytes(value, static_cast<std::uint32_t>(Feature::Kind::floats), list);
  protobuf::append_bytes(entry, 1, name);
  protobuf::append_bytes(entry, 2, value);
  protobuf::append_bytes(all, 1, entry);
  protobuf::append_bytes(out, 1, all);
  return out;
}

}  // namespace tutti::test
