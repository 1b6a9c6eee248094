// SPDX-License-Identifier: MIT
// A reader with the fault that all other targets search for: it trusts a length in the file. The test passes if the
// fuzzer finds the fault, which shows that the fuzzer and its sanitizers work.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fuzz::seeded_bug {

// Format: magic "TU", one byte of length, then that number of bytes.
std::vector<std::uint8_t> read_record(std::span<const std::uint8_t> file) {
  if (file.size() < 3 || file[0] != 'T' || file[1] != 'U') return {};
  const std::size_t length = file[2];
  std::vector<std::uint8_t> record;
  for (std::size_t i = 0; i < length; ++i) record.push_back(file.data()[3 + i]);
  return record;
}

int run(const std::uint8_t* data, std::size_t size) {
  // Copies the input, so that a read after its end is outside of the allocation.
  const std::vector<std::uint8_t> file(data, data + size);
  return read_record(file).size() > 255 ? -1 : 0;
}

}  // namespace fuzz::seeded_bug
