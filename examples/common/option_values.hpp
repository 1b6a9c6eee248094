// SPDX-License-Identifier: MIT
#pragma once

#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <system_error>

#include <tutti/core/error.hpp>

#include "check_values.hpp"
#include "config_file.hpp"

// The values of options as text, and back.
namespace tutti::examples::detail {

template <class N>
void parse_number(const std::string& option, const std::string& text, const char* kind, N& to) {
  N value{};
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || begin == end)
    fail<UsageError>(option, error == std::errc::result_out_of_range ? std::string(kind) + " in range" : kind,
                     "'" + text + "'");
  to = value;
}
inline void assign(const std::string&, const std::string& text, std::string& to) { to = text; }
inline void assign(const std::string& o, const std::string& text, std::int64_t& to) {
  parse_number(o, text, "an integer", to);
}
inline void assign(const std::string& o, const std::string& text, std::uint64_t& to) {
  parse_number(o, text, "an integer of 0 or more", to);
}
inline void assign(const std::string& o, const std::string& text, double& to) { parse_number(o, text, "a number", to); }
inline void assign(const std::string& option, const std::string& said, bool& to) {
  std::string text = said;
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* yes : {"1", "true", "yes", "on"})
    if (text == yes) return void(to = true);
  for (const char* no : {"0", "false", "no", "off"})
    if (text == no) return void(to = false);
  fail<UsageError>(option, "0 or 1", "'" + said + "'");
}
template <class T>
void assign(const std::string& option, const std::string& text, std::optional<T>& to) {
  T value{};
  assign(option, text, value);
  to = value;
}

inline std::string kind_of(const std::string&) { return "TEXT"; }
inline std::string kind_of(bool) { return "[0|1]"; }
inline std::string kind_of(std::int64_t) { return "INT"; }
inline std::string kind_of(std::uint64_t) { return "INT"; }
inline std::string kind_of(double) { return "NUMBER"; }
template <class T>
std::string kind_of(const std::optional<T>&) {
  return kind_of(T{});
}

// A value as a configuration file has it.
inline std::string value_text(const std::string& v) { return examples::quoted(v); }
inline std::string value_text(bool v) { return v ? "true" : "false"; }
inline std::string value_text(std::int64_t v) { return std::to_string(v); }
inline std::string value_text(std::uint64_t v) { return std::to_string(v); }
inline std::string value_text(double v) { return text_of(v); }
template <class T>
std::string value_text(const std::optional<T>& v) {
  return v ? value_text(*v) : "auto";
}
inline bool is_open(const auto&) { return false; }
template <class T>
bool is_open(const std::optional<T>& v) {
  return !v;
}

}  // namespace tutti::examples::detail
