// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/json/json_value.hpp>
#include <tutti/io/utf8.hpp>

namespace tutti::io {

// Limits of a JSON text (bytes, values, nesting). All are checked before memory is allocated. A value takes about 40
// bytes.
struct JsonLimits {
  std::size_t bytes = std::size_t{16} << 20;
  std::size_t values = std::size_t{1} << 20;
  int depth = 64;
};

namespace detail {

class JsonParser {
 public:
  JsonParser(std::string_view text, std::string_view where, const JsonLimits& limits)
      : text_(text), where_(where), limits_(limits) {}

  [[nodiscard]] Json document() {
    if (text_.size() > limits_.bytes)
      fail<DataError>({"json ", where_}, {"at most ", limits_.bytes, " bytes"}, text_.size());
    Json result = value(0);
    skip_space();
    if (at_ < text_.size()) wrong("the end after the value");
    return result;
  }

 private:
  // Returns "line:column" of an offset. Both count from 1; columns count bytes.
  [[nodiscard]] std::string place(std::size_t at) const {
    const auto head = text_.substr(0, at);
    const auto line = std::count(head.begin(), head.end(), '\n') + 1;
    const auto newline = head.rfind('\n');
    const auto column = newline == std::string_view::npos ? at + 1 : at - newline;
    return std::to_string(line) + ":" + std::to_string(column);
  }
  [[noreturn]] void wrong_at(std::size_t at, std::string_view expected, std::string_view got,
                             std::string_view hint = {}) const {
    fail<DataError>({"json ", where_, ":", place(at)}, expected, got, hint);
  }
  [[noreturn]] void wrong(std::string_view expected, std::string_view hint = {}) const {
    wrong_at(at_, expected, here(), hint);
  }
  // Returns a description of the next byte.
  [[nodiscard]] std::string here() const {
    if (at_ >= text_.size()) return "the end of the text";
    const auto byte = static_cast<std::uint8_t>(text_[at_]);
    if (byte >= 0x20 && byte < 0x7F) return std::string("'") + text_[at_] + "'";
    constexpr char hex[] = "0123456789abcdef";
    return std::string("the byte 0x") + hex[byte >> 4] + hex[byte & 15];
  }

  [[nodiscard]] char peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }
  [[nodiscard]] bool take(char c) noexcept {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_space() noexcept {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }
  [[nodiscard]] bool is_digit() const noexcept { return peek() >= '0' && peek() <= '9'; }

  [[nodiscard]] Json value(int depth) {
    skip_space();
    if (++values_ > limits_.values) wrong_at(at_, "at most " + std::to_string(limits_.values) + " values", "one more");
    switch (peek()) {
      case '{':
        return object(depth + 1);
      case '[':
        return array(depth + 1);
      case '"':
        return string();
      case 't':
        return word("true", true);
      case 'f':
        return word("false", false);
      case 'n':
        return word("null", nullptr);
      default:
        if (peek() == '-' || is_digit()) return number();
        wrong("a value");
    }
  }

  [[nodiscard]] Json word(std::string_view name, Json result) {
    if (text_.substr(at_, name.size()) != name) wrong("'" + std::string(name) + "'");
    at_ += name.size();
    return result;
  }

  void enter(int depth) {
    if (depth > limits_.depth)
      wrong_at(at_, "at most " + std::to_string(limits_.depth) + " levels of nesting", "one more");
    ++at_;
    skip_space();
  }

  [[nodiscard]] Json array(int depth) {
    enter(depth);
    Json::Array items;
    if (take(']')) return items;
    while (true) {
      items.push_back(value(depth));
      skip_space();
      if (take(']')) return items;
      if (!take(',')) wrong("',' or ']'");
    }
  }

  [[nodiscard]] Json object(int depth) {
    enter(depth);
    Json::Object members;
    std::vector<std::size_t> places;
    if (take('}')) return members;
    while (true) {
      skip_space();
      if (peek() != '"') wrong("a key in double quotes");
      places.push_back(at_);
      std::string key = string();
      skip_space();
      if (!take(':')) wrong("':' after the key");
      members.emplace_back(std::move(key), value(depth));
      skip_space();
      if (take('}')) break;
      if (!take(',')) wrong("',' or '}'");
    }
    refuse_duplicates(members, places);
    return members;
  }

  // Sorts the keys, so that hostile objects with many keys do not cost quadratic time.
  void refuse_duplicates(const Json::Object& members, const std::vector<std::size_t>& places) const {
    std::vector<std::size_t> order(members.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.data(), order.data() + order.size(), [&](std::size_t a, std::size_t b) {
      const int c = members[a].first.compare(members[b].first);
      return c != 0 ? c < 0 : a < b;
    });
    for (std::size_t i = 1; i < order.size(); ++i)
      if (members[order[i]].first == members[order[i - 1]].first)
        wrong_at(places[order[i]], "each key once", "the key '" + members[order[i]].first + "' again");
  }

  [[nodiscard]] std::string string() {
    ++at_;
    std::string out;
    while (true) {
      // Copies a run of plain characters at once.
      std::size_t end = at_;
      while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' &&
             static_cast<std::uint8_t>(text_[end]) >= 0x20 && static_cast<std::uint8_t>(text_[end]) < 0x80)
        ++end;
      out.append(text_.substr(at_, end - at_));
      at_ = end;
      if (take('"')) return out;
      if (take('\\')) {
        escape(out);
      } else if (at_ >= text_.size()) {
        wrong("'\"' at the end of the string");
      } else if (static_cast<std::uint8_t>(text_[at_]) < 0x20) {
        wrong("an escaped control character in a string", "write it as \\u00xx");
      } else {
        const std::size_t length = utf8_length(text_, at_);
        if (length == 0) wrong("UTF-8");
        out.append(text_.substr(at_, length));
        at_ += length;
      }
    }
  }

  void escape(std::string& out) {
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    if (take('u')) {
      append_utf8(out, escaped_point());
      return;
    }
    const auto which = at_ < text_.size() ? letters.find(text_[at_]) : std::string_view::npos;
    if (which == std::string_view::npos) wrong("one of \"\\/bfnrtu after '\\'");
    out.push_back(meanings[which]);
    ++at_;
  }

  [[nodiscard]] std::uint32_t escaped_point() {
    const std::size_t start = at_;
    const std::uint32_t first = four_hex_digits();
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first > 0xDBFF) wrong_at(start, "a high surrogate first", "a low surrogate");
    if (!take('\\') || !take('u')) wrong_at(start, "a low surrogate after the high one", "no surrogate");
    const std::uint32_t second = four_hex_digits();
    if (second < 0xDC00 || second > 0xDFFF) wrong_at(start, "a low surrogate after the high one", "another character");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  [[nodiscard]] std::uint32_t four_hex_digits() {
    std::uint32_t v = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      if (c >= '0' && c <= '9')
        v = v * 16 + static_cast<std::uint32_t>(c - '0');
      else if (c >= 'a' && c <= 'f')
        v = v * 16 + static_cast<std::uint32_t>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        v = v * 16 + static_cast<std::uint32_t>(c - 'A' + 10);
      else
        wrong("four hexadecimal digits after '\\u'");
    }
    return v;
  }

  // A number without fraction and exponent is an integer. "-0" is a double, because integers have no negative zero.
  [[nodiscard]] Json number() {
    const std::size_t start = at_;
    bool integer = true;
    const bool negative = take('-');
    if (!is_digit()) wrong("a digit");
    const bool zero = peek() == '0';
    digits();
    if (zero && at_ - start > (negative ? 2U : 1U))
      wrong_at(start, "a number without a leading zero", "a leading zero");
    if (take('.')) {
      integer = false;
      if (!is_digit()) wrong("a digit after '.'");
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      integer = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!is_digit()) wrong("a digit in the exponent");
      digits();
    }
    const char* const first = text_.data() + start;
    const char* const last = text_.data() + at_;
    if (integer && !(negative && zero)) {
      std::int64_t v = 0;
      if (std::from_chars(first, last, v).ec != std::errc())
        wrong_at(start, "a signed 64-bit integer", "an integer outside of that range",
                 "write it with a '.' or an exponent");
      return v;
    }
    double v = 0;
    if (std::from_chars(first, last, v).ec != std::errc())
      wrong_at(start, "a number in the range of a double", "a number outside of it");
    return v;
  }
  void digits() noexcept {
    while (is_digit()) ++at_;
  }

  std::string_view text_;
  std::string_view where_;
  JsonLimits limits_;
  std::size_t at_ = 0;
  std::size_t values_ = 0;
};

}  // namespace detail

// Reads one JSON value that fills the whole text. Strict: UTF-8 only, no comments, no trailing commas, no leading
// zeros, no repeated key, integers within 64 bits. Throws DataError "[json <where>:<line>:<column>] ...".
[[nodiscard]] inline Json parse_json(std::string_view text, std::string_view where = "text",
                                     const JsonLimits& limits = {}) {
  return detail::JsonParser(text, where, limits).document();
}

}  // namespace tutti::io
