// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

// A command line of options and other words.
namespace tutti::predict_tool {

struct Option {
  std::string_view name;  // with dashes
  bool takes_value;
  std::function<void(const std::string& value)> set;
};

[[nodiscard]] inline Option flag(std::string_view name, bool& to) {
  return {name, false, [&to](const std::string&) { to = true; }};
}

[[nodiscard]] inline Option text(std::string_view name, std::string& to) {
  return {name, true, [&to](const std::string& v) { to = v; }};
}

// One of some words.
[[nodiscard]] Option word(std::string_view name, std::string& to, std::vector<std::string> words);

template <class T>
[[nodiscard]] T number_of(std::string_view name, const std::string& v, T low, T high) {
  T n{};
  const auto [end, error] = std::from_chars(v.data(), v.data() + v.size(), n);
  if (error != std::errc() || end != v.data() + v.size() || !(n >= low && n <= high))
    fail<UsageError>(name, "a number from " + std::to_string(low) + " to " + std::to_string(high),
                     "'" + printable(v) + "'");
  return n;
}

[[nodiscard]] inline Option number(std::string_view name, std::int64_t& to, std::int64_t low, std::int64_t high) {
  return {name, true, [=, &to](const std::string& v) { to = number_of(name, v, low, high); }};
}

// One value, or one for each of three channels.
[[nodiscard]] Option per_channel(std::string_view name, std::vector<float>& to, float low);

// Sets what the words say and returns those that are no options. All behind "--" are none, and neither is "-".
[[nodiscard]] std::vector<std::string> read_words(const std::vector<std::string>& words,
                                                  const std::vector<Option>& options);

}  // namespace tutti::predict_tool
