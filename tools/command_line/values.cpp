// SPDX-License-Identifier: MIT
#include "tools/command_line/values.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::command_line {

template <class T>
T number(const std::string& option, const std::string& text, T low, T high, const std::string& expected) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= low && value <= high))
    fail<UsageError>(option, expected, "'" + printable(text) + "'");
  return value;
}

template float number(const std::string&, const std::string&, float, float, const std::string&);
template double number(const std::string&, const std::string&, double, double, const std::string&);

std::int64_t integer(const std::string& option, const std::string& text, std::int64_t low, std::int64_t high,
                     const std::string& kind) {
  return number(option, text, low, high, kind + " from " + std::to_string(low) + " to " + std::to_string(high));
}

Set flag(bool& to) {
  return [&to](const std::string&, const std::string&) { to = true; };
}

Set text(std::string& to) {
  return [&to](const std::string& option, const std::string& value) {
    if (value.empty()) fail<UsageError>(option, "a value", "an empty one");
    to = value;
  };
}

Set one_of(std::string& to, std::vector<std::string> words) {
  return [&to, words = std::move(words)](const std::string& option, const std::string& value) {
    if (std::find(words.begin(), words.end(), value) == words.end()) {
      std::string all;
      for (std::size_t i = 0; i < words.size(); ++i)
        all += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
      fail<UsageError>(option, all, "'" + printable(value) + "'");
    }
    to = value;
  };
}

}  // namespace tutti::command_line
