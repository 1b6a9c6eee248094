// SPDX-License-Identifier: MIT
// Reads any bytes as a stored plan or choice. A text is loaded only if it belongs to the key and its checksum is right.
// The first byte of the input says which parts of the file are right, so that the fuzzer reaches what follows them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <tutti/io/crc32c.hpp>
#include <tutti/io/text_store.hpp>

#include "data/temp_folder.hpp"

namespace fuzz::text_store {

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti;
  static const test::TempFolder folder;
  static const io::TextStore store(folder.path(), "tutti fuzz 1", ".text");
  constexpr std::string_view key = "conv\n3x3", right = "tutti fuzz 1\nconv 3x3\n";
  if (size == 0) return 0;
  const bool has_head = (data[0] & 1) != 0, has_sum = (data[0] & 2) != 0;
  const std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  std::string file = has_head ? std::string(right) : std::string();
  if (has_sum) file += std::to_string(io::crc32c(bytes)) + "\n";
  file += bytes;
  std::ofstream(store.file_of(key), std::ios::binary | std::ios::trunc) << file;
  const auto text = store.load(key);
  if (!text) {
    if (has_head && has_sum && !bytes.empty()) std::abort();
    return 0;
  }
  if (text->empty() || !file.starts_with(right) || !file.ends_with(*text)) std::abort();
  // The checksum is a line of digits between the key and the text.
  const std::string_view sum = std::string_view(file).substr(right.size(), file.size() - right.size() - text->size());
  if (sum.empty() || sum.back() != '\n' || std::strtoull(sum.data(), nullptr, 10) != io::crc32c(*text)) std::abort();
  if (store.load("conv 3x4")) std::abort();
  return 0;
}

}  // namespace fuzz::text_store
