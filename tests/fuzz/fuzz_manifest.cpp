// SPDX-License-Identifier: MIT
// Reads any bytes as a checkpoint's manifest.json. The result is either DataError or a manifest that is the same after
// writing and reading it again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/io/checkpoint/checkpoint_manifest.hpp>

namespace fuzz::manifest {

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti::io;
  const std::vector<char> exact(data, data + size);
  const std::string_view text(exact.data(), exact.size());
  try {
    if (crc_text(parse_crc_text(text, "fuzz")) != text) std::abort();
  } catch (const tutti::DataError&) {
  }
  CheckpointManifest manifest;
  try {
    manifest = parse_manifest(text, "fuzz");
  } catch (const tutti::DataError&) {
    return 0;
  }
  if (manifest.step < 0 || manifest.counters.kind() != "an object" || manifest.options.kind() != "an object")
    std::abort();
  const std::string written = write_manifest(manifest);
  if (parse_manifest(written, "again") != manifest) std::abort();
  return 0;
}

}  // namespace fuzz::manifest
