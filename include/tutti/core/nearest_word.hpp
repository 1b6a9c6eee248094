// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

// The suggestion "did you mean" for an unknown name, which all programs print.
namespace tutti {

// Returns the number of characters to insert, remove or replace to turn one text into the other (Levenshtein 1966).
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row.back();
}

// Returns the known name that `name` was probably meant to be: a name that differs in at most a third of its
// characters, or else the shortest name that begins with `name` or contains it between dashes. Returns an empty text if
// no name is close.
template <class Names>
[[nodiscard]] std::string nearest_word(std::string_view name, const Names& known) {
  std::string nearest;
  std::size_t least = std::max<std::size_t>(name.size() / 3, 1) + 1;
  for (const std::string& word : known)
    if (const std::size_t d = edit_distance(name, word); d < least) {
      least = d;
      nearest = word;
    }
  if (!nearest.empty() || name.size() < 3) return nearest;
  bool begins = false;
  for (const std::string& word : known) {
    const bool starts = word.starts_with(name);
    const bool inside = ("-" + word + "-").find("-" + std::string(name) + "-") != std::string::npos;
    if (!starts && (!inside || begins)) continue;
    if (nearest.empty() || starts != begins || word.size() < nearest.size()) nearest = word;
    begins = begins || starts;
  }
  return nearest;
}

}  // namespace tutti
