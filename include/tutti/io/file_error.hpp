// SPDX-License-Identifier: MIT
#pragma once

#include <sys/statvfs.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <tutti/core/error.hpp>

namespace tutti::io {

using Path = std::filesystem::path;

// A system call on a file failed. error_number() returns its errno, so that a program can distinguish a full disk
// (ENOSPC) from a missing file (ENOENT).
class FileError : public DataError {
 public:
  FileError(const std::string& message, int error_number) : DataError(message), error_number_(error_number) {}
  [[nodiscard]] int error_number() const noexcept { return error_number_; }

 private:
  int error_number_;
};

// Returns the bytes that an unprivileged process may still write on the file system of `path`, or no value if that is
// unknown. `path` need not exist: a parent folder is used instead.
[[nodiscard]] inline std::optional<std::uint64_t> free_bytes(Path path) {
  struct statvfs s {};
  while (::statvfs(path.c_str(), &s) != 0) {
    const Path parent = path.has_parent_path() ? path.parent_path() : Path(".");
    if (errno != ENOENT || parent == path) return std::nullopt;
    path = parent;
  }
  return static_cast<std::uint64_t>(s.f_bavail) * static_cast<std::uint64_t>(s.f_frsize);
}

// Throws FileError "[file] expected to <what> <path>, got <reason>". If the disk is full, the message includes the free
// bytes.
[[noreturn]] inline void fail_file(std::string_view what, const Path& path, int error_number) {
  std::string got = std::generic_category().message(error_number);
  std::string hint;
  switch (error_number) {
    case ENOSPC:
    case EDQUOT: {
      const auto room = free_bytes(path);
      if (room) got += " (" + std::to_string(*room) + " bytes free)";
      hint = "free space on that disk or choose another folder";
      break;
    }
    case EACCES:
    case EPERM:
    case EROFS:
      hint = "give this user access to the folder and the file";
      break;
    case EFBIG:
      hint = "raise the limit on file sizes, see ulimit -f";
      break;
    case EMFILE:
      hint = "raise the limit on open files, see ulimit -n";
      break;
    default:
      break;
  }
  throw FileError(error_message("file", std::string("to ").append(what).append(" ").append(path.string()), got, hint),
                  error_number);
}

}  // namespace tutti::io
