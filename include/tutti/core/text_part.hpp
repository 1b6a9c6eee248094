// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>

#include <tutti/core/separate.hpp>

// The arguments of fail() (error.hpp) and concat(): parts of a text. fail() joins them only when it throws the error.
namespace tutti {

// A part of a text: a string, a number as std::to_string() writes it, or a list of parts, such as {"rank ", rank, " of
// ", ranks}. It refers to its strings: they must outlive it, as the arguments of a call do. It has the size of two
// registers, so a call with parts compiles to a few instructions and needs no destructors.
class TextPart {
 public:
  // NOLINTBEGIN(google-explicit-constructor)
  constexpr TextPart() noexcept : text_(nullptr), size_and_kind_(pack(0, Kind::text)) {}
  constexpr TextPart(std::string_view text) noexcept
      : text_(text.data()), size_and_kind_(pack(text.size(), Kind::text)) {}
  // These two read the length only when it is needed: a call of fail() is a fifth cheaper to compile.
  constexpr TextPart(const char* text) noexcept : text_(text), size_and_kind_(pack(0, Kind::c_string)) {}
  constexpr TextPart(const std::string& text) noexcept : string_(&text), size_and_kind_(pack(0, Kind::string)) {}
  template <std::signed_integral T>
  constexpr TextPart(T number) noexcept : signed_(number), size_and_kind_(pack(0, Kind::signed_number)) {}
  template <std::unsigned_integral T>
  constexpr TextPart(T number) noexcept : unsigned_(number), size_and_kind_(pack(0, Kind::unsigned_number)) {}
  constexpr TextPart(double number) noexcept : real_(number), size_and_kind_(pack(0, Kind::real_number)) {}
  constexpr TextPart(float number) noexcept : TextPart(static_cast<double>(number)) {}
  constexpr TextPart(std::initializer_list<TextPart> parts) noexcept
      : parts_(std::data(parts)), size_and_kind_(pack(parts.size(), Kind::list)) {}
  TextPart(char) = delete;  // it may mean a character or a number
  TextPart(bool) = delete;
  TextPart(std::nullptr_t) = delete;
  // NOLINTEND(google-explicit-constructor)

  void append_to(std::string& text) const;

 private:
  enum class Kind : unsigned char { text, c_string, string, signed_number, unsigned_number, real_number, list };
  static constexpr std::uint64_t pack(std::size_t size, Kind kind) noexcept {
    return static_cast<std::uint64_t>(size) << 3U | static_cast<std::uint64_t>(kind);
  }

  union {
    const char* text_;
    const std::string* string_;
    std::int64_t signed_;
    std::uint64_t unsigned_;
    double real_;
    const TextPart* parts_;
  };
  std::uint64_t size_and_kind_;
};

// Returns the parts as one string, for example concat({"thread ", i, " of ", threads}). Use it for texts that are
// written seldom: its code is a third as large as that of a chain of `+`.
[[gnu::cold]] TUTTI_CORE_FUNCTION std::string concat(TextPart parts);

#if TUTTI_CORE_DEFINITIONS
[[gnu::cold]] TUTTI_CORE_FUNCTION std::string concat(TextPart parts) {
  std::string text;
  parts.append_to(text);
  return text;
}
[[gnu::cold]] TUTTI_CORE_FUNCTION void TextPart::append_to(std::string& text) const {
  const auto size = static_cast<std::size_t>(size_and_kind_ >> 3U);
  switch (static_cast<Kind>(size_and_kind_ & 7U)) {
    case Kind::text:
      text.append(std::string_view(text_, size));
      break;
    case Kind::c_string:
      text.append(text_);
      break;
    case Kind::string:
      text.append(*string_);
      break;
    case Kind::signed_number:
      text.append(std::to_string(signed_));
      break;
    case Kind::unsigned_number:
      text.append(std::to_string(unsigned_));
      break;
    case Kind::real_number:
      text.append(std::to_string(real_));
      break;
    case Kind::list:
      for (const TextPart* p = parts_; p != parts_ + size; ++p) p->append_to(text);
      break;
  }
}
#endif

}  // namespace tutti
