// SPDX-License-Identifier: MIT
#include "tools/trainer/config_file.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <istream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::trainer {

namespace {

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front())) != 0) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back())) != 0) s.remove_suffix(1);
  return s;
}

// Removes a value from the beginning of `rest`: "text" with \" and \\, 'text' literally, or a bare word up to a
// character of `stops`.
bool take_value(std::string_view& rest, std::string_view stops, std::string& value) {
  value.clear();
  rest = trimmed(rest);
  if (rest.empty() || (rest.front() != '"' && rest.front() != '\'')) {
    const std::size_t end = std::min(rest.find_first_of(stops), rest.size());
    value = trimmed(rest.substr(0, end));
    rest.remove_prefix(end);
    return !value.empty();
  }
  const char quote = rest.front();
  rest.remove_prefix(1);
  for (; !rest.empty() && rest.front() != quote; rest.remove_prefix(1)) {
    if (quote == '"' && rest.front() == '\\') {
      rest.remove_prefix(1);
      if (rest.empty() || (rest.front() != '"' && rest.front() != '\\')) return false;
    }
    value += rest.front();
  }
  if (rest.empty()) return false;
  rest.remove_prefix(1);
  rest = trimmed(rest);
  return true;
}

// Returns the value of a line, which may end in a comment. The items of [a, b] are returned as "a,b".
bool parse_value(std::string_view rest, std::string& value) {
  rest = trimmed(rest);
  if (rest.starts_with('[')) {
    rest.remove_prefix(1);
    value.clear();
    std::string item;
    for (bool first = true; take_value(rest, ",]#", item); first = false) {
      value += (first ? "" : ",") + item;
      if (rest.starts_with(',')) rest.remove_prefix(1);
    }
    if (!rest.starts_with(']')) return false;
    rest.remove_prefix(1);
    rest = trimmed(rest);
  } else if (!take_value(rest, "#", value)) {
    return false;
  }
  return rest.empty() || rest.front() == '#';
}

}  // namespace

std::vector<ConfigEntry> parse_config(std::istream& in) {
  std::vector<ConfigEntry> entries;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const std::string_view text = trimmed(line);
    if (text.empty() || text.front() == '#' || text.front() == ';') continue;
    const std::string where = "--config line " + std::to_string(number);
    if (text.front() == '[') fail<UsageError>(where, "options without sections", "'" + printable(text) + "'");
    const std::size_t equals = text.find('=');
    ConfigEntry e;
    e.name = trimmed(text.substr(0, equals));
    e.line = number;
    if (equals == std::string_view::npos || e.name.empty() || !parse_value(text.substr(equals + 1), e.value))
      fail<UsageError>(where, "name = value", "'" + printable(text) + "'", "write text in \"quotes\"");
    entries.push_back(std::move(e));
  }
  return entries;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n' || c == '\r') fail<UsageError>("--print-config", "values without line breaks", "one with");
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace tutti::trainer
