// SPDX-License-Identifier: MIT
// Reads any bytes as a key file. The result is either a secret of 64 digits, or UsageError that shows no digit of it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/cluster/launch/key_file.hpp>
#include <tutti/core/error.hpp>

namespace fuzz::key_file {

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti;
  const std::vector<char> exact(data, data + size);
  const std::string_view text(exact.data(), exact.size());
  try {
    const std::string secret = parse_key(text, "fuzz");
    if (secret.size() != key_digits || secret.find_first_not_of("0123456789abcdef") != secret.npos) std::abort();
    if (parse_key(secret + "\n", "again") != secret) std::abort();
    if (size > key_digits + 2) std::abort();
  } catch (const UsageError& e) {
    const std::string_view said = e.what();
    if (said.find("[fuzz]") != 0) std::abort();
    // The error must not show a part of a text that is almost a key either.
    for (std::size_t at = 0; at + 8 <= size; ++at) {
      const std::string_view part = text.substr(at, 8);
      if (part.find_first_not_of("0123456789abcdefABCDEF") == part.npos && said.find(part) != said.npos) std::abort();
    }
  }
  return 0;
}

}  // namespace fuzz::key_file
