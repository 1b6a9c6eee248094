// SPDX-License-Identifier: MIT
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti {
[[nodiscard]] inline std::vector<std::uint8_t> read_file(const std::filesystem::path& path, std::size_t most) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail<DataError>("data", "to open " + path.string(), std::strerror(errno));
  struct stat st {};
  ::fstat(fd, &st);
  const auto size = static_cast<std::size_t>(st.st_size);
  if (size > most) { ::close(fd); fail<DataError>("data", "at most " + std::to_string(most), std::to_string(size)); }
  std::vector<std::uint8_t> out(size);
  std::size_t at = 0;
  while (at < size) {
    const auto n = ::read(fd, out.data() + at, size - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) { ::close(fd); fail<DataError>("data", "to read " + path.string(), "error"); }
    at += static_cast<std::size_t>(n);
  }
  ::close(fd);
  return out;
}
}  // namespace tutti
