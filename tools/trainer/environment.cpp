// SPDX-License-Identifier: MIT
#include "tools/trainer/environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::trainer {

namespace {

// Returns "batch-size" for "TUTTI_BATCH_SIZE". The next function does the reverse.
[[nodiscard]] std::string option_of_variable(std::string_view variable) {
  std::string name(variable.substr(std::string_view("TUTTI_").size()));
  for (char& c : name) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

std::string variable_of_option(std::string_view option) {
  std::string name = "TUTTI_";
  for (const char c : option) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::vector<VariableEntry> environment_entries() {
  std::vector<VariableEntry> found;
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    const std::string_view entry(*e);
    const std::size_t equals = entry.find('=');
    const std::string_view variable = entry.substr(0, equals);
    if (!variable.starts_with("TUTTI_") || equals == std::string_view::npos || equals + 1 == entry.size()) continue;
    if (std::find(std::begin(own_variables), std::end(own_variables), variable) != std::end(own_variables)) continue;
    found.push_back({std::string(variable), option_of_variable(variable), std::string(entry.substr(equals + 1))});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.variable < b.variable; });
  return found;
}

}  // namespace tutti::trainer
