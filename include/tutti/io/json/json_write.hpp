// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/io/json/json_parse.hpp>
#include <tutti/io/json/json_value.hpp>
#include <tutti/io/utf8.hpp>

namespace tutti::io {

namespace detail {

class JsonWriter {
 public:
  explicit JsonWriter(int indent) : indent_(indent) {}

  void value(const Json& v, int depth) {
    if (v.is_null()) {
      out_ += "null";
    } else if (v.is_bool()) {
      out_ += v.as_bool() ? "true" : "false";
    } else if (v.is_integer()) {
      chars(v.as_integer());
    } else if (v.is_double()) {
      number(v.as_double());
    } else if (v.is_string()) {
      string(v.as_string());
    } else if (v.is_array()) {
      items(v.as_array(), '[', ']', depth, [&](const Json& item) { value(item, depth + 1); });
    } else {
      items(v.as_object(), '{', '}', depth, [&](const Json::Member& m) {
        string(m.first);
        out_ += indent_ > 0 ? ": " : ":";
        value(m.second, depth + 1);
      });
    }
  }

  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  template <class T>
  void chars(T v) {
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, v).ptr;
    out_.append(buffer, end);
  }

  void number(double v) {
    if (!math::is_finite(v))
      fail<UsageError>("json", "a finite number", math::is_nan(v) ? "NaN" : "an infinity", "JSON cannot represent it");
    const std::size_t start = out_.size();
    chars(v);
    // A double must be a double when it is read again.
    if (out_.find_first_of(".e", start) == std::string::npos) out_ += ".0";
  }

  void string(std::string_view text) {
    out_ += '"';
    for (std::size_t at = 0; at < text.size();) {
      const auto byte = static_cast<std::uint8_t>(text[at]);
      if (byte == '"' || byte == '\\') {
        out_ += '\\';
        out_ += text[at++];
      } else if (byte < 0x20 || byte == 0x7F) {
        control(byte);
        ++at;
      } else {
        const std::size_t length = utf8_length(text, at);
        if (length == 0) fail<UsageError>("json", "a string in UTF-8", {"invalid bytes at ", at});
        out_.append(text.substr(at, length));
        at += length;
      }
    }
    out_ += '"';
  }

  void control(std::uint8_t byte) {
    constexpr std::string_view letters = "bfnrt";
    constexpr std::string_view meanings = "\b\f\n\r\t";
    const auto which = meanings.find(static_cast<char>(byte));
    if (which != std::string_view::npos) {
      out_ += '\\';
      out_ += letters[which];
      return;
    }
    constexpr char hex[] = "0123456789abcdef";
    out_ += "\\u00";
    out_ += hex[byte >> 4];
    out_ += hex[byte & 15];
  }

  template <class Items, class One>
  void items(const Items& all, char open, char close, int depth, One&& one) {
    if (depth >= JsonLimits{}.depth)
      fail<UsageError>("json", {"at most ", JsonLimits{}.depth, " levels of nesting"}, "one more");
    out_ += open;
    bool first = true;
    for (const auto& item : all) {
      if (!first) out_ += ',';
      first = false;
      new_line(depth + 1);
      one(item);
    }
    if (!first) new_line(depth);
    out_ += close;
  }
  void new_line(int depth) {
    if (indent_ == 0) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(indent_) * static_cast<std::size_t>(depth), ' ');
  }

  int indent_;
  std::string out_;
};

}  // namespace detail

// Returns the value as JSON text, which parse_json() reads back equal. Doubles have the fewest digits that round-trip.
// indent: 0 writes a single line, other numbers write several lines. Throws UsageError for what JSON cannot express:
// NaN, infinities, bytes that are not UTF-8, more than 64 levels.
[[nodiscard]] inline std::string write_json(const Json& value, int indent = 0) {
  detail::JsonWriter writer(indent);
  writer.value(value, 0);
  return writer.take();
}

}  // namespace tutti::io
