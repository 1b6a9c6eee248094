// SPDX-License-Identifier: MIT
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tutti/io/crc32c.hpp>
#include <tutti/io/tfrecord.hpp>

using namespace tutti::io;

TEST_CASE("CRC-32C gives the known answers of RFC 3720, appendix B.4") {
  std::string up, down;
  for (int i = 0; i < 32; ++i) {
    up.push_back(static_cast<char>(i));
    down.push_back(static_cast<char>(31 - i));
  }
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAU);
  CHECK(crc32c(std::string(32, '\xFF')) == 0x62A8AB43U);
  CHECK(crc32c(up) == 0x46DD794EU);
  CHECK(crc32c(down) == 0x113FDB5CU);
  CHECK(crc32c("123456789") == 0xE3069283U);
  CHECK(crc32c("") == 0);
}

TEST_CASE("the portable CRC-32C gives the same result for every length, whole or in pieces") {
  std::vector<std::byte> bytes(300);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 167 + 13);
  for (std::size_t n = 0; n <= bytes.size(); ++n) {
    const auto part = std::span<const std::byte>(bytes).first(n);
    const std::uint32_t whole = crc32c(part);
    REQUIRE(~detail::crc32c_portable(~0U, part) == whole);
    REQUIRE(crc32c(part.subspan(n / 3), crc32c(part.first(n / 3))) == whole);
  }
  CHECK(~detail::crc32c_portable(~0U, std::as_bytes(std::span("123456789", 9))) == 0xE3069283U);
}

TEST_CASE("the masked CRC-32C has known values") {
  // The mask rotates right by 15 bits and adds a constant.
  CHECK(mask_crc32c(0) == 0xA282EAD8U);
  CHECK(mask_crc32c(1) == 0xA284EAD8U);
  CHECK(mask_crc32c(0x8000) == 0xA282EAD9U);
  CHECK(mask_crc32c(crc32c("123456789")) == 0xC78AB0E5U);
}

TEST_CASE("a TFRecord has known bytes") {
  // Every TensorBoard file begins with the length 24 and the masked checksum of this length.
  std::string out;
  append_tfrecord(out, std::string(24, 'x'));
  CHECK(out.size() == 8 + 4 + 24 + 4);
  CHECK(out.substr(0, 12) == std::string("\x18\0\0\0\0\0\0\0\xA3\x7F\x4B\x22", 12));
}
