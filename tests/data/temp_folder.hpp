// SPDX-License-Identifier: MIT
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>

namespace tutti::test {

// Creates a new folder in the system's folder for temporary files. The destructor removes it with its contents.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tutti-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::span<const std::uint8_t> bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  write_file(path, std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}

// Returns the root of the source tree.
inline std::filesystem::path source_root() {
#ifdef TUTTI_SOURCE_DIR
  return TUTTI_SOURCE_DIR;
#else
  return std::filesystem::absolute(__FILE__).lexically_normal().parent_path().parent_path().parent_path();
#endif
}

// Returns $TUTTI_DATA; if the variable is not set, the shared data folder next to the source tree; if that folder does
// not exist, an empty path.
inline std::filesystem::path real_data() {
  if (const char* data = std::getenv("TUTTI_DATA"); data != nullptr && *data != 0) return data;
  const auto shared = source_root().parent_path() / "shared" / "data";
  return std::filesystem::exists(shared) ? shared : std::filesystem::path{};
}

// Returns the message of the exception of type E that f throws; "" if f does not throw.
template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace tutti::test
