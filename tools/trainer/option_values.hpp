// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/trainer/check_values.hpp"
#include "tools/trainer/config_file.hpp"

// Converts the values of options to text and back.
namespace tutti::trainer::detail {

inline void assign(const std::string&, const std::string& text, std::string& to) { to = text; }

// Converts `text`. Throws UsageError that names `option` if it is not a value of the type.
void assign(const std::string& option, const std::string& text, std::int64_t& to);
void assign(const std::string& option, const std::string& text, std::uint64_t& to);
void assign(const std::string& option, const std::string& text, double& to);
void assign(const std::string& option, const std::string& said, bool& to);

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

// Returns a value in the form of a configuration file.
inline std::string value_text(const std::string& v) { return trainer::quoted(v); }

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

}  // namespace tutti::trainer::detail
