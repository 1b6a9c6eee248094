// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>

// Unpacks gzip files (RFC 1952, RFC 1951), because distributions ship data sets that way.
namespace tutti {
namespace detail {

// Decodes one deflate stream. Every read and every write is checked.
class Inflate {
 public:
  Inflate(std::span<const std::uint8_t> in, std::vector<std::uint8_t>& out, std::size_t most, std::string_view where)
      : in_(in), out_(out), most_(most), where_(where) {}

  // Returns the number of input bytes used; `out` then has exactly the unpacked bytes.
  std::size_t run() {
    bool last = false;
    while (!last) {
      last = bits(1) != 0;
      switch (bits(2)) {
        case 0:
          stored();
          break;
        case 1:
          fixed_tables();
          block();
          break;
        case 2:
          dynamic_tables();
          block();
          break;
        default:
          bad("a block of type 0, 1 or 2", "type 3");
      }
    }
    out_.resize(size_);
    return next_ - static_cast<std::size_t>(have_ / 8);
  }

 private:
  static constexpr int longest = 15;
  struct Table {
    int width = 0;                                 // bits that index the table
    std::array<std::uint16_t, 1 << longest> code;  // symbol << 4 | length; 0: no such code
  };

  [[noreturn]] void bad(std::string_view expected, std::string_view got) const {
    fail<DataError>(where_, expected, got, "the gzip data is damaged, fetch the file again");
  }

  // Fills the bit buffer to 48 bits or more; behind the end of the input with zeros, which bits() then refuses.
  void refill() noexcept {
    if (next_ + 8 <= in_.size() && std::endian::native == std::endian::little) {
      std::uint64_t word;
      std::memcpy(&word, in_.data() + next_, 8);
      buffer_ |= word << have_;
      const int bytes = (63 - have_) / 8;
      next_ += static_cast<std::size_t>(bytes);
      have_ += bytes * 8;
      buffer_ &= (std::uint64_t{1} << have_) - 1;
    } else {
      while (have_ <= 48 && next_ < in_.size()) {
        buffer_ |= std::uint64_t{in_[next_++]} << have_;
        have_ += 8;
      }
    }
  }
  void drop(int n) {
    if (n > have_) bad("more compressed data", "the end of the file");
    buffer_ >>= n;
    have_ -= n;
  }
  std::uint32_t bits(int n) {
    if (have_ < n) refill();
    const auto value = static_cast<std::uint32_t>(buffer_ & ((std::uint64_t{1} << n) - 1));
    drop(n);
    return value;
  }
  unsigned symbol(const Table& table) {
    if (have_ < longest) refill();
    const std::uint16_t entry = table.code[buffer_ & ((std::uint64_t{1} << table.width) - 1)];
    if (entry == 0) bad("a known code", "an unknown one");
    drop(entry & 15);
    return entry >> 4;
  }

  void room(std::size_t n) {
    if (n > most_ - size_) bad("at most " + std::to_string(most_) + " unpacked bytes", "more");
    if (size_ + n > out_.size()) out_.resize(std::min(most_, std::max(size_ + n, out_.size() * 2)));
  }

  void stored() {
    drop(have_ % 8);
    const std::uint32_t length = bits(16), check = bits(16);
    if ((length ^ check) != 0xffff) bad("a stored block with its length twice", "two different lengths");
    next_ -= static_cast<std::size_t>(have_ / 8);
    buffer_ = 0;
    have_ = 0;
    if (length > in_.size() - next_) bad("more stored data", "the end of the file");
    room(length);
    std::copy_n(in_.data() + next_, length, out_.data() + size_);
    next_ += length;
    size_ += length;
  }

  // Canonical Huffman codes from their lengths. A single code of one bit may stand alone, as RFC 1951 allows.
  void build(std::span<const std::uint8_t> lengths, Table& table) {
    std::array<std::uint32_t, longest + 2> count{}, first{};
    int width = 0, used = 0;
    for (const auto l : lengths)
      if (l != 0) {
        ++count[l];
        ++used;
        width = std::max<int>(width, l);
      }
    std::uint32_t left = 1;
    for (std::size_t l = 1; l <= longest; ++l) {
      left <<= 1;
      if (count[l] > left) bad("Huffman codes that fit", "too many");
      left -= count[l];
      first[l + 1] = (first[l] + count[l]) << 1;
    }
    if (left != 0 && used > 1) bad("a complete set of Huffman codes", "an incomplete one");
    if (used == 1 && width != 1) bad("a single code of one bit", "a longer one");
    table.width = width;
    std::fill_n(table.code.begin(), std::size_t{1} << width, std::uint16_t{0});
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      const unsigned l = lengths[s];
      if (l == 0) continue;
      std::uint32_t code = first[l]++, reversed = 0;
      for (unsigned i = 0; i < l; ++i, code >>= 1) reversed = reversed << 1 | (code & 1);
      for (std::uint32_t i = reversed; i < (std::uint32_t{1} << width); i += std::uint32_t{1} << l)
        table.code[i] = static_cast<std::uint16_t>(s << 4 | l);
    }
  }

  void fixed_tables() {
    std::array<std::uint8_t, 288> lengths;
    std::fill_n(lengths.begin(), 144, std::uint8_t{8});
    std::fill_n(lengths.begin() + 144, 112, std::uint8_t{9});
    std::fill_n(lengths.begin() + 256, 24, std::uint8_t{7});
    std::fill_n(lengths.begin() + 280, 8, std::uint8_t{8});
    build(lengths, literals_);
    std::fill_n(lengths.begin(), 32, std::uint8_t{5});
    build(std::span(lengths).first(32), distances_);
  }

  void dynamic_tables() {
    const std::size_t n_literals = bits(5) + 257, n_distances = bits(5) + 1, n_codes = bits(4) + 4;
    if (n_literals > 286 || n_distances > 30) bad("at most 286 literal and 30 distance codes", "more");
    static constexpr std::array<std::uint8_t, 19> order{16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                        11, 4,  12, 3, 13, 2, 14, 1, 15};
    std::array<std::uint8_t, 320> lengths{};
    for (std::size_t i = 0; i < n_codes; ++i) lengths[order[i]] = static_cast<std::uint8_t>(bits(3));
    build(std::span(lengths).first(19), literals_);
    lengths.fill(0);
    const std::size_t total = n_literals + n_distances;
    for (std::size_t i = 0; i < total;) {
      const unsigned s = symbol(literals_);
      if (s < 16) {
        lengths[i++] = static_cast<std::uint8_t>(s);
        continue;
      }
      if (s == 16 && i == 0) bad("a length to repeat", "none");
      const std::uint8_t value = s == 16 ? lengths[i - 1] : std::uint8_t{0};
      const std::size_t times = s == 16 ? 3 + bits(2) : s == 17 ? 3 + bits(3) : 11 + bits(7);
      if (times > total - i) bad("as many code lengths as announced", "more");
      std::fill_n(lengths.begin() + static_cast<std::ptrdiff_t>(i), times, value);
      i += times;
    }
    if (lengths[256] == 0) bad("a code for the end of the block", "none");
    build(std::span(lengths).first(n_literals), literals_);
    build(std::span(lengths).subspan(n_literals, n_distances), distances_);
  }

  void block() {
    static constexpr std::array<std::uint16_t, 29> length_base{3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                                               15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                                               67, 83, 99, 115, 131, 163, 195, 227, 258};
    static constexpr std::array<std::uint8_t, 29> length_bits{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                              2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    for (;;) {
      const unsigned s = symbol(literals_);
      if (s < 256) {
        if (size_ == out_.size()) room(1);
        out_[size_++] = static_cast<std::uint8_t>(s);
        continue;
      }
      if (s == 256) return;
      if (s > 285) bad("a length code up to 285", std::to_string(s));
      const std::size_t length = length_base[s - 257] + bits(length_bits[s - 257]);
      const unsigned d = symbol(distances_);
      if (d > 29) bad("a distance code up to 29", std::to_string(d));
      // The codes 2k and 2k + 1 (k > 0) begin at 2^k and 1.5 * 2^k, plus 1, and carry k - 1 more bits.
      const int extra = d < 4 ? 0 : static_cast<int>(d / 2) - 1;
      const std::size_t base = d < 4 ? d + 1 : (std::size_t{2 + d % 2} << extra) + 1;
      const std::size_t distance = base + bits(extra);
      if (distance > size_) bad("a distance within the data", "one before its start");
      room(length);
      std::uint8_t* to = out_.data() + size_;
      const std::uint8_t* from = to - distance;
      for (std::size_t i = 0; i < length; ++i) to[i] = from[i];  // source and target may overlap: byte by byte
      size_ += length;
    }
  }

  std::span<const std::uint8_t> in_;
  std::vector<std::uint8_t>& out_;
  std::size_t most_, next_ = 0, size_ = 0;
  std::uint64_t buffer_ = 0;
  int have_ = 0;
  std::string_view where_;
  Table literals_, distances_;
};

[[nodiscard]] inline std::uint32_t crc32(std::span<const std::uint8_t> data) noexcept {
  static constexpr auto table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = (c >> 1) ^ ((c & 1) != 0 ? 0xEDB88320U : 0U);
      t[i] = c;
    }
    return t;
  }();
  std::uint32_t c = 0xffffffffU;
  for (const auto b : data) c = table[(c ^ b) & 0xff] ^ (c >> 8);
  return ~c;
}

}  // namespace detail

// The unpacked contents of a gzip file with one member, at most `most` bytes. `where` names the file in messages.
// Throws DataError for anything damaged, cut off, too long, or with bytes after its end.
[[nodiscard]] inline std::vector<std::uint8_t> gunzip(std::span<const std::uint8_t> file, std::size_t most,
                                                      std::string_view where) {
  const auto bad = [&](std::string_view expected, std::string_view got) {
    fail<DataError>(where, expected, got, "the gzip data is damaged, fetch the file again");
  };
  if (file.size() < 18 || file[0] != 0x1f || file[1] != 0x8b || file[2] != 8 || (file[3] & 0xe0) != 0)
    bad("a gzip file", std::to_string(file.size()) + " bytes of something else");
  const unsigned flags = file[3];
  std::size_t at = 10;
  const auto skip = [&](std::size_t n) {
    if (n > file.size() - at) bad("a complete gzip header", "the end of the file");
    at += n;
  };
  if ((flags & 4) != 0) {  // extra field
    skip(2);
    skip(static_cast<std::size_t>(file[at - 2] | file[at - 1] << 8));
  }
  for (const unsigned flag : {8U, 16U})  // name, comment
    if ((flags & flag) != 0) {
      const auto* end = static_cast<const std::uint8_t*>(std::memchr(file.data() + at, 0, file.size() - at));
      if (end == nullptr) bad("a complete gzip header", "the end of the file");
      at = static_cast<std::size_t>(end - file.data()) + 1;
    }
  if ((flags & 2) != 0) skip(2);
  const auto word = [](std::span<const std::uint8_t> p) {
    return std::uint32_t{p[0]} | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16 | std::uint32_t{p[3]} << 24;
  };
  std::vector<std::uint8_t> out;
  // What the file claims as its size is believed only as far as deflate's best ratio, 1032 : 1, allows it.
  out.resize(std::min({most, std::size_t{word(file.last(4))}, (file.size() - at) * 1032}));
  const std::span<const std::uint8_t> body = file.subspan(at);
  const std::size_t used = std::make_unique<detail::Inflate>(body, out, most, where)->run();
  if (body.size() - used != 8) bad("8 bytes after the compressed data", std::to_string(body.size() - used));
  if (word(body.subspan(used)) != detail::crc32(out)) bad("the CRC-32 the file states", "another");
  if (word(body.subspan(used + 4)) != static_cast<std::uint32_t>(out.size()))
    bad("the size the file states", std::to_string(out.size()));
  return out;
}

}  // namespace tutti
