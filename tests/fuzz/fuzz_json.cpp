// SPDX-License-Identifier: MIT
// Reads any bytes as JSON. The result is either DataError or a value that is the same after writing and reading it
// again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <tutti/io/json/json.hpp>

namespace fuzz::json {

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti::io;
  // Copies the input, so that a read after its end is outside of the allocation.
  const std::vector<char> exact(data, data + size);
  const std::string_view text(exact.data(), exact.size());
  try {
    const Json value = parse_json(text, "fuzz");
    for (const int indent : {0, 2}) {
      const std::string written = write_json(value, indent);
      const Json again = parse_json(written, "again");
      if (again != value || write_json(again, indent) != written) std::abort();
    }
  } catch (const tutti::DataError& e) {
    if (std::string_view(e.what()).find("[json fuzz") != 0) std::abort();
  }
  return 0;
}

}  // namespace fuzz::json
