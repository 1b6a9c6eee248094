// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/io/file.hpp>

namespace tutti::report_tool {

// Calls f(line, number from 1, whole) for each line of a regular file. Passes at most `most` bytes of a line, so that a
// file without newlines does not fill the memory. whole: the line is complete, with its newline. Throws FileError, or
// DataError if the path is not a regular file.
template <class F>
void for_each_line(const io::Path& path, std::size_t most, F&& f) {
  struct stat status {};
  const io::Descriptor fd = io::detail::open_regular(path, status);
  std::string buffer(std::size_t{1} << 18, '\0'), line;
  std::int64_t number = 1;
  bool cut = false;
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io::fail_file("read", path, errno);
    if (n == 0) break;
    std::string_view rest(buffer.data(), static_cast<std::size_t>(n));
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      const std::string_view piece = rest.substr(0, end);
      const std::size_t room = most - line.size();
      cut = cut || piece.size() > room;
      line.append(piece.substr(0, room));
      if (end == std::string_view::npos) break;
      rest.remove_prefix(end + 1);
      f(std::string_view(line), number, !cut);
      line.clear();
      cut = false;
      ++number;
    }
  }
  if (!line.empty()) f(std::string_view(line), number, false);
}

}  // namespace tutti::report_tool
