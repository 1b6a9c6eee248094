// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

// SHA-256 (FIPS 180-4), and HMAC (RFC 2104): a hash that can only be computed with a key. It hashes a few hundred bytes
// at the start of a job, and is not optimised for speed.
namespace tutti {

using Digest256 = std::array<std::byte, 32>;

class Sha256 {  // the hash, piece by piece (FIPS 180-4)
 public:
  void add(std::span<const std::byte> bytes) noexcept {
    for (const std::byte b : bytes) {
      block_[used_++] = static_cast<std::uint8_t>(b);
      ++total_;
      if (used_ == block_.size()) mix();
    }
  }
  void add(std::string_view text) noexcept { add(std::as_bytes(std::span(text))); }

  // Returns the digest of all added bytes. Call it once.
  [[nodiscard]] Digest256 digest() noexcept {
    const std::uint64_t bits = total_ * 8;
    constexpr std::byte one{0x80}, zero{0};
    add(std::span(&one, 1));
    while (used_ != 56) add(std::span(&zero, 1));
    for (int i = 7; i >= 0; --i) {
      const auto b = static_cast<std::byte>(bits >> (8 * i));
      add(std::span(&b, 1));
    }
    Digest256 d{};
    for (std::size_t i = 0; i < d.size(); ++i) d[i] = static_cast<std::byte>(h_[i / 4] >> (24 - 8 * (i % 4)));
    return d;
  }

 private:
  static constexpr std::array<std::uint32_t, 64> k{
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

  void mix() noexcept {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 16; ++i)
      for (std::size_t j = 0; j < 4; ++j) w[i] = w[i] << 8 | block_[4 * i + j];
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto v = h_;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t e = v[4], a = v[0];
      const std::uint32_t t1 =
          v[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
      const std::uint32_t t2 =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
      v = {t1 + t2, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
    }
    for (std::size_t i = 0; i < h_.size(); ++i) h_[i] += v[i];
    used_ = 0;
  }

  std::array<std::uint32_t, 8> h_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> block_{};
  std::size_t used_ = 0;
  std::uint64_t total_ = 0;
};

// HMAC with SHA-256 of all parts that are added.
class HmacSha256 {
 public:
  explicit HmacSha256(std::string_view key) noexcept {
    std::array<std::byte, 64> padded{};
    if (key.size() > padded.size()) {
      Sha256 of_key;
      of_key.add(key);
      const Digest256 d = of_key.digest();
      std::copy(d.begin(), d.end(), padded.begin());
    } else {
      std::transform(key.begin(), key.end(), padded.begin(), [](char c) { return static_cast<std::byte>(c); });
    }
    const auto begin = [&](Sha256& with, std::byte x) {
      std::array<std::byte, 64> block{};
      std::transform(padded.begin(), padded.end(), block.begin(), [x](std::byte b) { return b ^ x; });
      with.add(block);
    };
    begin(inner_, std::byte{0x36});
    begin(outer_, std::byte{0x5c});
  }
  HmacSha256& add(std::span<const std::byte> bytes) noexcept {
    inner_.add(bytes);
    return *this;
  }
  HmacSha256& add(std::string_view text) noexcept { return add(std::as_bytes(std::span(text))); }
  // Returns the digest of all added parts. Call it once.
  [[nodiscard]] Digest256 digest() noexcept {
    outer_.add(inner_.digest());
    return outer_.digest();
  }

 private:
  Sha256 inner_, outer_;
};

// Returns whether two digests are equal. The time does not depend on the position of a difference.
[[nodiscard]] inline bool same_digest(const Digest256& a, const Digest256& b) noexcept {
  std::byte differs{0};
  for (std::size_t i = 0; i < a.size(); ++i) differs |= a[i] ^ b[i];
  return differs == std::byte{0};
}

}  // namespace tutti
