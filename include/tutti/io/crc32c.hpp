// SPDX-License-Identifier: MIT
#pragma once

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace tutti::io {

namespace detail {

// of[k][b] is the CRC of byte b followed by k zero bytes ("slicing by 8"). Computed at the first use: a constant would
// cost compile time in every file that includes this header.
struct Crc32cTable {
  Crc32cTable() {
    for (std::uint32_t b = 0; b < 256; ++b) {
      std::uint32_t c = b;
      for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1U) != 0 ? 0x82F63B78U : 0U);
      of[0][b] = c;
    }
    for (std::size_t k = 1; k < 8; ++k)
      for (std::size_t b = 0; b < 256; ++b) of[k][b] = (of[k - 1][b] >> 8) ^ of[0][of[k - 1][b] & 0xFFU];
  }
  std::array<std::array<std::uint32_t, 256>, 8> of{};
};

// Both functions take and return the register, which is the complement of the checksum.
[[nodiscard]] inline std::uint32_t crc32c_portable(std::uint32_t c, std::span<const std::byte> bytes) noexcept {
  static const Crc32cTable table;
  const auto& t = table.of;
  const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(bytes[i]); };
  while (bytes.size() >= 8) {
    const std::uint32_t low = c ^ (at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24);
    c = t[7][low & 0xFFU] ^ t[6][(low >> 8) & 0xFFU] ^ t[5][(low >> 16) & 0xFFU] ^ t[4][low >> 24] ^ t[3][at(4)] ^
        t[2][at(5)] ^ t[1][at(6)] ^ t[0][at(7)];
    bytes = bytes.subspan(8);
  }
  for (const std::byte b : bytes) c = (c >> 8) ^ t[0][(c ^ static_cast<std::uint32_t>(b)) & 0xFFU];
  return c;
}

#if defined(__x86_64__)
[[nodiscard]] __attribute__((target("sse4.2"))) inline std::uint32_t crc32c_sse42(
    std::uint32_t c, std::span<const std::byte> bytes) noexcept {
  std::uint64_t wide = c;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  c = static_cast<std::uint32_t>(wide);
  for (const std::byte b : bytes) c = __builtin_ia32_crc32qi(c, static_cast<std::uint8_t>(b));
  return c;
}
#elif defined(__aarch64__) && defined(__linux__)
[[nodiscard]] inline std::uint32_t crc32c_arm(std::uint32_t c, std::span<const std::byte> bytes) noexcept {
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(c) : "r"(word));
  }
  for (const std::byte b : bytes)
    asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(c) : "r"(static_cast<std::uint32_t>(b)));
  return c;
}
#endif

}  // namespace detail

// Returns the CRC-32C (Castagnoli; RFC 3720, appendix B.4) of the bytes. `before` is the checksum of the bytes that
// precede them.
[[nodiscard]] inline std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept {
#if defined(__x86_64__)
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2") != 0;
  if (has_sse42) return ~detail::crc32c_sse42(~before, bytes);
#elif defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long crc_bit = 1UL << 7;  // HWCAP_CRC32
  static const bool has_crc = (::getauxval(AT_HWCAP) & crc_bit) != 0;
  if (has_crc) return ~detail::crc32c_arm(~before, bytes);
#endif
  return ~detail::crc32c_portable(~before, bytes);
}
// The same for a text.
[[nodiscard]] inline std::uint32_t crc32c(std::string_view text, std::uint32_t before = 0) noexcept {
  return crc32c(std::as_bytes(std::span(text.data(), text.size())), before);
}

// Returns the masked checksum that TFRecord files store. A plain CRC of data that contains CRCs would be a weak check.
[[nodiscard]] constexpr std::uint32_t mask_crc32c(std::uint32_t crc) noexcept {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

}  // namespace tutti::io
