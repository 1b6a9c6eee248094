// SPDX-License-Identifier: MIT
#include "tools/trainer/check_values.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/nearest_word.hpp>

namespace tutti::trainer::detail {

std::string list_of(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

void word(const char* option, std::string& value, const std::vector<std::string>& words,
          const std::vector<std::pair<std::string, std::string>>& synonyms, const char* hint) {
  std::string w = value;
  for (char& c : w) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [other, first] : synonyms)
    if (w == other) w = first;
  if (std::find(words.begin(), words.end(), w) == words.end()) {
    const std::string nearest = hint[0] == 0 ? nearest_word(w, words) : std::string();
    fail<UsageError>(option, list_of(words), "'" + value + "'", nearest.empty() ? hint : "did you mean " + nearest);
  }
  value = w;
}

std::string text_of(double v) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, v).ptr};
}

void number(const char* option, double v, double low, double high) {
  if (!(v >= low && v <= high)) fail<UsageError>(option, text_of(low) + " to " + text_of(high), text_of(v));
}

void number(const char* option, std::int64_t v, std::int64_t low, std::int64_t high) {
  if (v < low || v > high)
    fail<UsageError>(option, std::to_string(low) + " to " + std::to_string(high), std::to_string(v));
}

}  // namespace tutti::trainer::detail
