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

// What fail() takes (error.hpp): the pieces of an error's text, which are put together only when the error is thrown.
namespace tutti {

// A part of an error's text: a string, a number as std::to_string() writes it, or a list of parts, such as
// {"rank ", rank, " of ", ranks}. It refers to its strings: they must outlive it, as the arguments of a call do. The
// size of two registers: a call with parts compiles to a few instructions and needs no destructors.
class ErrorPart {
 public:
  // NOLINTBEGIN(google-explicit-constructor)
  constexpr ErrorPart() noexcept : text_(nullptr), size_and_kind_(pack(0, Kind::text)) {}
  constexpr ErrorPart(std::string_view text) noexcept
      : text_(text.data()), size_and_kind_(pack(text.size(), Kind::text)) {}
  constexpr ErrorPart(const char* text) noexcept : ErrorPart(std::string_view(text)) {}
  ErrorPart(const std::string& text) noexcept : ErrorPart(std::string_view(text)) {}
  template <std::signed_integral T>
  constexpr ErrorPart(T number) noexcept : signed_(number), size_and_kind_(pack(0, Kind::signed_number)) {}
  template <std::unsigned_integral T>
  constexpr ErrorPart(T number) noexcept : unsigned_(number), size_and_kind_(pack(0, Kind::unsigned_number)) {}
  constexpr ErrorPart(double number) noexcept : real_(number), size_and_kind_(pack(0, Kind::real_number)) {}
  constexpr ErrorPart(float number) noexcept : ErrorPart(static_cast<double>(number)) {}
  constexpr ErrorPart(std::initializer_list<ErrorPart> parts) noexcept
      : parts_(std::data(parts)), size_and_kind_(pack(parts.size(), Kind::list)) {}
  ErrorPart(char) = delete;  // a character or a number?
  ErrorPart(bool) = delete;
  ErrorPart(std::nullptr_t) = delete;
  // NOLINTEND(google-explicit-constructor)

  void append_to(std::string& text) const;

 private:
  enum class Kind : unsigned char { text, signed_number, unsigned_number, real_number, list };
  static constexpr std::uint64_t pack(std::size_t size, Kind kind) noexcept {
    return static_cast<std::uint64_t>(size) << 3U | static_cast<std::uint64_t>(kind);
  }

  union {
    const char* text_;
    std::int64_t signed_;
    std::uint64_t unsigned_;
    double real_;
    const ErrorPart* parts_;
  };
  std::uint64_t size_and_kind_;
};

#if TUTTI_CORE_DEFINITIONS
[[gnu::cold]] TUTTI_CORE_FUNCTION void ErrorPart::append_to(std::string& text) const {
  const auto size = static_cast<std::size_t>(size_and_kind_ >> 3U);
  switch (static_cast<Kind>(size_and_kind_ & 7U)) {
    case Kind::text:
      text.append(std::string_view(text_, size));
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
      for (const ErrorPart* p = parts_; p != parts_ + size; ++p) p->append_to(text);
      break;
  }
}
#endif

}  // namespace tutti
