// SPDX-License-Identifier: MIT
#pragma once

#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>

#include "temp_folder.hpp"

// Helpers that the tests of all record formats use.
namespace tutti::test {

using Bytes = std::vector<std::uint8_t>;

inline Bytes read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::filesystem::path fixture(const std::string& name) {
  return source_root() / "tests" / "data" / "fixtures" / name;
}

// Returns the bytes used as image k in the fixtures and in the files that tests write.
inline Bytes plain_image(std::size_t k) {
  Bytes b;
  for (std::size_t j = 0; j < 20 + 37 * k; ++j) b.push_back(static_cast<std::uint8_t>(k * 7 + j * 13));
  return b;
}

// What a test got when it read a whole data set: labels and images, and the message of the first DataError.
struct Contents {
  std::vector<std::int32_t> labels;
  std::vector<Bytes> images;
  std::string error;
  bool operator==(const Contents&) const = default;
};
template <class Open>
Contents contents_by(Open&& open) {
  Contents c;
  try {
    const auto records = open();
    for (std::int64_t i = 0; i < records.size(); ++i) {
      Bytes b(3, 99);
      c.labels.push_back(records.read(i, b));
      c.images.push_back(b);
    }
  } catch (const DataError& e) {
    c.error = e.what();
  }
  return c;
}

// Sets an environment variable during its lifetime. The destructor restores the previous value.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name); old != nullptr) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (old_)
      ::setenv(name_, old_->c_str(), 1);
    else
      ::unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace tutti::test
