// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/command_line/command_line.hpp"

// Functions that set a field of a program's options to an option's value, or refuse the value with a UsageError.
namespace tutti::command_line {

// For float, double and std::int64_t. expected: the expected value in the error message.
template <class T>
[[nodiscard]] T number(const std::string& option, const std::string& text, T low, T high, const std::string& expected);

[[nodiscard]] std::int64_t integer(const std::string& option, const std::string& text, std::int64_t low,
                                   std::int64_t high, const std::string& kind = "an integer");

// Sets `to` to true.
[[nodiscard]] Set flag(bool& to);

// Accepts any text that is not empty.
[[nodiscard]] Set text(std::string& to);

[[nodiscard]] Set one_of(std::string& to, std::vector<std::string> words);

template <class T>
[[nodiscard]] Set integer(T& to, std::int64_t low, std::int64_t high, const std::string& kind = "an integer") {
  return [&to, low, high, kind](const std::string& option, const std::string& value) {
    const std::int64_t n = integer(option, value, low, high, kind);
    if constexpr (requires { typename T::value_type; })
      to = static_cast<typename T::value_type>(n);
    else
      to = static_cast<T>(n);
  };
}

}  // namespace tutti::command_line
