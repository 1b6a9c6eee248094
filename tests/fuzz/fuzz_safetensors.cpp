// SPDX-License-Identifier: MIT
// Reads any bytes as a safetensors file. The result is either DataError, or tensors that lie within the file and are
// the same after writing and reading them again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <tutti/io/safetensors/safetensors.hpp>
#include <tutti/io/safetensors/safetensors_write.hpp>

namespace fuzz::safetensors {

using namespace tutti::io;

void round_trip(const Safetensors& file) {
  const auto records = file.records();
  std::vector<std::byte> written;
  try {
    write_safetensors([&](std::span<const std::byte> b) { written.insert(written.end(), b.begin(), b.end()); }, records,
                      file.metadata());
  } catch (const tutti::UsageError&) {
    std::abort();  // tensors of a valid file can be written
  }
  Safetensors again;
  try {
    again = Safetensors::view(written, "again");
  } catch (const tutti::DataError&) {
    std::abort();  // a written file can be read
  }
  if (again.metadata() != file.metadata() || again.entries().size() != records.size()) std::abort();
  for (const auto& r : records) {
    const auto a = again.record(r.name);
    if (a.dtype != r.dtype || a.shape != r.shape || !std::ranges::equal(a.bytes, r.bytes)) std::abort();
    if (static_cast<std::size_t>(a.bytes.data() - written.data()) % tutti::size_of(a.dtype) != 0 && !a.bytes.empty())
      std::abort();
  }
}

void parse(std::span<const std::uint8_t> input) {
  const std::vector<std::byte> exact = [&] {
    const auto bytes = std::as_bytes(input);
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }();
  try {
    const Safetensors file = Safetensors::view(exact, "fuzz");
    std::size_t sum = 0;
    for (const auto& e : file.entries()) {
      sum += e.bytes.size();
      for (const std::byte b : e.bytes) (void)*const_cast<const volatile std::byte*>(&b);
    }
    if (sum > exact.size()) std::abort();
    round_trip(file);
  } catch (const tutti::DataError&) {
  }
}

int run(const std::uint8_t* data, std::size_t size) {
  parse({data, size});
  // Reads the input again with a correct length, which the fuzzer would hardly find. The header ends at the last '}',
  // and the data follows.
  const std::span<const std::uint8_t> text(data, size);
  const auto last = std::find(text.rbegin(), text.rend(), '}');
  const std::uint64_t length = static_cast<std::uint64_t>(text.rend() - last);
  std::vector<std::uint8_t> framed(8);
  std::memcpy(framed.data(), &length, 8);
  framed.insert(framed.end(), text.begin(), text.end());
  parse(framed);
  return 0;
}

}  // namespace fuzz::safetensors
