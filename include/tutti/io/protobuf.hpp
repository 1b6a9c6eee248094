// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/io/tfrecord.hpp>

// Writes the wire format of protocol buffers (https://protobuf.dev/programming-guides/encoding). A message is a string;
// each function appends a field.
namespace tutti::io::protobuf {

enum class Wire : std::uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

inline void append_varint(std::string& out, std::uint64_t v) {
  for (; v >= 0x80; v >>= 7) out.push_back(static_cast<char>((v & 0x7FU) | 0x80U));
  out.push_back(static_cast<char>(v));
}
inline void append_key(std::string& out, std::uint32_t field, Wire wire) {
  append_varint(out, (std::uint64_t{field} << 3) | static_cast<std::uint32_t>(wire));
}
// Appends a string, a byte string or a nested message.
inline void append_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  append_key(out, field, Wire::bytes);
  append_varint(out, bytes.size());
  out.append(bytes);
}
// Appends an int32, int64 or enum.
inline void append_int(std::string& out, std::uint32_t field, std::int64_t v) {
  append_key(out, field, Wire::varint);
  append_varint(out, static_cast<std::uint64_t>(v));
}
inline void append_double(std::string& out, std::uint32_t field, double v) {
  append_key(out, field, Wire::fixed64);
  append_little_endian(out, std::bit_cast<std::uint64_t>(v), 8);
}
inline void append_float(std::string& out, std::uint32_t field, float v) {
  append_key(out, field, Wire::fixed32);
  append_little_endian(out, std::bit_cast<std::uint32_t>(v), 4);
}

}  // namespace tutti::io::protobuf
