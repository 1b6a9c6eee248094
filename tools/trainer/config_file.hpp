// SPDX-License-Identifier: MIT
#pragma once

#include <istream>
#include <string>
#include <string_view>
#include <vector>

// The files of --config: one "name = value" on each line, as in TOML and INI files without sections.
namespace tutti::trainer {

struct ConfigEntry {
  std::string name, value;
  int line = 0;
};

// Throws UsageError with the line's number.
std::vector<ConfigEntry> parse_config(std::istream& in);

// Returns the text in a form that parse_config() reads back.
std::string quoted(std::string_view text);

}  // namespace tutti::trainer
