// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/isa.hpp>
#include <tutti/data/augment/image_op.hpp>
#include <tutti/io/safetensors/safetensors.hpp>

#include "data/image_fixtures.hpp"

// What timm, torchvision and PIL do with two real images: tests/data/fixtures/augment/make.py.
namespace tutti::test {

inline const io::Safetensors& augment_goldens() {
  static const io::Safetensors file =
      io::Safetensors::open(source_root() / "tests" / "data" / "fixtures" / "augment" / "augment.safetensors");
  return file;
}

inline Picture augment_golden(const std::string& name) {
  const auto r = augment_goldens().record(name);
  const auto* data = reinterpret_cast<const std::uint8_t*>(r.bytes.data());
  return {static_cast<int>(r.shape[1]), static_cast<int>(r.shape[0]), Bytes(data, data + r.bytes.size())};
}

template <class T>
std::vector<T> augment_numbers(const std::string& name) {
  const auto r = augment_goldens().record(name);
  std::vector<T> v(r.bytes.size() / sizeof(T));
  std::memcpy(v.data(), r.bytes.data(), r.bytes.size());
  return v;
}

// The names of the records that begin with `prefix`.
inline std::vector<std::string> augment_names(std::string_view prefix) {
  std::vector<std::string> names;
  for (const auto& e : augment_goldens().entries())
    if (e.name.starts_with(prefix)) names.push_back(e.name);
  return names;
}

// The parts of a name between slashes.
inline std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream text(name);
  for (std::string part; std::getline(text, part, '/');) parts.push_back(part);
  return parts;
}

inline ImageOp op_named(std::string_view name) {
  for (int i = 0; i < image_ops; ++i)
    if (name_of(static_cast<ImageOp>(i)) == name) return static_cast<ImageOp>(i);
  throw std::runtime_error("no operation " + std::string(name));
}

// The pixels of an image that differ from the wanted ones by more than one level in a channel, and the share of values
// that differ at all.
struct Mismatch {
  std::int64_t pixels = 0, beyond_one = 0, values = 0, differing = 0;
  int most = 0;
  void add(const Bytes& got, const Bytes& want) {
    if (got.size() != want.size()) throw std::runtime_error("images of different sizes");
    pixels += static_cast<std::int64_t>(got.size() / 3);
    values += static_cast<std::int64_t>(got.size());
    for (std::size_t i = 0; i < got.size(); i += 3) {
      int d = 0;
      for (std::size_t c = 0; c < 3; ++c) {
        const int e = std::abs(got[i + c] - want[i + c]);
        d = std::max(d, e);
        differing += e != 0 ? 1 : 0;
      }
      most = std::max(most, d);
      beyond_one += d > 1 ? 1 : 0;
    }
  }
};

// The instruction sets of this processor.
inline std::vector<cpu::Isa> known_isas() {
  std::vector<cpu::Isa> isas;
  for (const cpu::Isa isa : cpu::isas)
    if (!cpu::has_bf16(isa) && isa <= cpu::detect_isa()) isas.push_back(isa);
  return isas;
}

}  // namespace tutti::test
