// SPDX-License-Identifier: MIT
// Reads any bytes as a file of --config. The result is either entries that are read again as they are written, or
// UsageError in plain characters.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>

// Includes the code, so that the sanitizers instrument it.
#include "tools/trainer/config_file.cpp"

namespace fuzz::config_file {

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti;
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  try {
    const auto entries = trainer::parse_config(in);
    std::string written;
    for (const auto& e : entries) {
      if (e.name.empty() || e.line < 1) std::abort();
      written += e.name + " = " + trainer::quoted(e.value) + "\n";
    }
    std::istringstream again(written);
    const auto same = trainer::parse_config(again);
    if (!std::equal(same.begin(), same.end(), entries.begin(), entries.end(),
                    [](const auto& a, const auto& b) { return a.name == b.name && a.value == b.value; }))
      std::abort();
  } catch (const UsageError& e) {
    const std::string_view text = e.what();
    if (std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; })) std::abort();
  }
  return 0;
}

}  // namespace fuzz::config_file
