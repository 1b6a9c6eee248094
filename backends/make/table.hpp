// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Functions for the tables of backends and strategies.
namespace tutti::detail {

// Returns the words as "a, b or c". last: the text between the last two words.
[[nodiscard]] inline std::string listed(const std::vector<std::string>& words, const char* last = " or ") {
  std::string list;
  for (std::size_t i = 0; i < words.size(); ++i) list += (i == 0 ? "" : i + 1 == words.size() ? last : ", ") + words[i];
  return list;
}

template <class Row>
[[nodiscard]] std::vector<std::string> built(std::span<const Row> rows) {
  std::vector<std::string> words;
  for (const Row& r : rows)
    if (r.make != nullptr) words.emplace_back(r.word);
  return words;
}

// Returns the row with this word, or null.
template <class Row>
[[nodiscard]] const Row* find_row(std::span<const Row> rows, std::string_view word) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.word == word; });
  return found != rows.end() ? &*found : nullptr;
}

}  // namespace tutti::detail
