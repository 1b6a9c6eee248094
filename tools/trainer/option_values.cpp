// SPDX-License-Identifier: MIT
#include "tools/trainer/option_values.hpp"

#include <cctype>
#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::trainer::detail {

namespace {

template <class N>
void parse_number(const std::string& option, const std::string& text, const char* kind, N& to) {
  N value{};
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || begin == end)
    fail<UsageError>(option, error == std::errc::result_out_of_range ? std::string(kind) + " in range" : kind,
                     "'" + printable(text) + "'");
  to = value;
}

}  // namespace

void assign(const std::string& option, const std::string& text, std::int64_t& to) {
  parse_number(option, text, "an integer", to);
}
void assign(const std::string& option, const std::string& text, std::uint64_t& to) {
  parse_number(option, text, "an integer of 0 or more", to);
}
void assign(const std::string& option, const std::string& text, double& to) {
  parse_number(option, text, "a number", to);
}
void assign(const std::string& option, const std::string& said, bool& to) {
  std::string text = said;
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* yes : {"1", "true", "yes", "on"})
    if (text == yes) return void(to = true);
  for (const char* no : {"0", "false", "no", "off"})
    if (text == no) return void(to = false);
  fail<UsageError>(option, "0 or 1", "'" + printable(said) + "'");
}

}  // namespace tutti::trainer::detail
