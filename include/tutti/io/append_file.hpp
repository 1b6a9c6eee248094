// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include <tutti/io/file.hpp>
#include <tutti/io/file_error.hpp>
#include <tutti/io/file_writer.hpp>

namespace tutti::io {

// A log file that grows by whole pieces. Each append() is one write. If a full disk stops a write in the middle of a
// piece, append() cuts that part off and throws FileError. One writer at a time.
class AppendFile {
 public:
  enum class Mode {
    continue_file,  // makes the file if it does not exist
    new_file,       // an existing file is an error
  };

  AppendFile(Path path, Mode mode)
      : path_(std::move(path)),
        fd_(Descriptor::open(path_, O_RDWR | O_CREAT | O_APPEND | (mode == Mode::new_file ? O_EXCL : 0), "open")) {}

  void append(std::string_view piece) {
    const off_t before = size();
    try {
      detail::write_fully(fd_.get(), std::as_bytes(std::span(piece.data(), piece.size())), path_);
    } catch (...) {
      cut(before);
      throw;
    }
  }
  void sync() {
    if (::fsync(fd_.get()) != 0) fail_file("sync", path_, errno);
  }

  // Removes everything after the last `end` byte, such as half a line that a killed program left.
  void cut_after_last(char end) {
    const off_t whole = size();
    char block[4096];
    for (off_t upto = whole; upto > 0;) {
      const auto length = static_cast<std::size_t>(std::min<off_t>(upto, sizeof block));
      const off_t from = upto - static_cast<off_t>(length);
      if (::pread(fd_.get(), block, length, from) != static_cast<ssize_t>(length)) fail_file("read", path_, EIO);
      const auto found = std::string_view(block, length).rfind(end);
      if (found != std::string_view::npos) {
        const off_t keep = from + static_cast<off_t>(found) + 1;
        if (keep != whole) cut(keep);
        return;
      }
      upto = from;
    }
    if (whole > 0) cut(0);
  }

  [[nodiscard]] const Path& path() const noexcept { return path_; }
  [[nodiscard]] bool empty() const { return size() == 0; }

 private:
  [[nodiscard]] off_t size() const {
    const off_t end = ::lseek(fd_.get(), 0, SEEK_END);
    if (end < 0) fail_file("seek in", path_, errno);
    return end;
  }
  void cut(off_t to) {
    if (::ftruncate(fd_.get(), to) != 0) fail_file("shorten", path_, errno);
  }

  Path path_;
  Descriptor fd_;
};

}  // namespace tutti::io
