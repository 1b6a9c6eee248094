// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/file_error.hpp>

// Files through POSIX calls. Each call is checked, and repeated after EINTR. Each failure throws a FileError that names
// the path.
namespace tutti::io {

// Owns a file descriptor. The destructor closes it without checking for errors.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

  [[nodiscard]] static Descriptor open(const Path& path, int flags, std::string_view what, mode_t mode = 0666) {
    int fd = -1;
    do fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) fail_file(what, path, errno);
    return Descriptor(fd);
  }

 private:
  int fd_ = -1;
};

namespace detail {

// Opens a regular file. Rejects pipes and devices, because reading them could block or never end.
[[nodiscard]] inline Descriptor open_regular(const Path& path, struct stat& status) {
  Descriptor fd = Descriptor::open(path, O_RDONLY | O_NONBLOCK, "open");
  if (::fstat(fd.get(), &status) != 0) fail_file("examine", path, errno);
  if (!S_ISREG(status.st_mode))
    fail<DataError>("file", {"a regular file at ", path.native()},
                    S_ISDIR(status.st_mode) ? "a folder" : "another kind of file");
  return fd;
}

inline void check_size(const Path& path, std::uint64_t size, std::uint64_t limit) {
  if (size > limit) fail<DataError>({"file ", path.native()}, {"at most ", limit, " bytes"}, size);
}

}  // namespace detail

// Returns the bytes of a regular file. Throws DataError before it allocates memory if there are more than `limit`
// bytes.
template <class Container = std::vector<std::byte>>
[[nodiscard]] Container read_file(const Path& path, std::size_t limit) {
  struct stat status {};
  const Descriptor fd = detail::open_regular(path, status);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  detail::check_size(path, size, limit);
  Container out;
  out.resize(static_cast<std::size_t>(size));
  for (std::size_t at = 0; at < out.size();) {
    const ssize_t n = ::read(fd.get(), out.data() + at, out.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file("read", path, errno);
    if (n == 0)
      fail<DataError>({"file ", path.native()}, {size, " bytes"}, at, "the file was truncated while it was read");
    at += static_cast<std::size_t>(n);
  }
  return out;
}
[[nodiscard]] inline std::string read_text_file(const Path& path, std::size_t limit) {  // throws FileError or DataError
  return read_file<std::string>(path, limit);
}

// A file mapped for reading. If another process shortens the file while it is mapped, later reads fail with SIGBUS.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const Path& path, std::uint64_t limit = std::numeric_limits<std::size_t>::max()) {
    struct stat status {};
    const Descriptor fd = detail::open_regular(path, status);
    detail::check_size(path, static_cast<std::uint64_t>(status.st_size), limit);
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ == 0) return;
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      fail_file("map", path, errno);
    }
  }
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MappedFile() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {static_cast<std::byte*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// Asks the system to drop its cached pages of a file, so that the next read uses the disk. The system may ignore the
// request.
inline void forget_cached(const Path& path) {
  const Descriptor fd = Descriptor::open(path, O_RDONLY, "open");
  (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
}

inline void fsync_directory(const Path& path) {
  const Descriptor fd = Descriptor::open(path, O_RDONLY | O_DIRECTORY, "open the folder");
  // Some network file systems return EINVAL: they have no such operation, because they write names immediately.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) fail_file("sync the folder", path, errno);
}

inline void rename_path(const Path& from, const Path& to) {  // throws FileError
  if (::rename(from.c_str(), to.c_str()) != 0) fail_file("rename " + from.string() + " to", to, errno);
}

inline void make_directories(const Path& path) {  // also makes parent folders; throws FileError
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_file("make the folder", path, error.value());
}

// Removes a file, or a folder with its content. A path that does not exist is no error.
inline void remove_tree(const Path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) fail_file("remove", path, error.value());
}

[[nodiscard]] inline bool path_exists(const Path& path) {  // Throws FileError if the answer cannot be determined.
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  if (status.type() == std::filesystem::file_type::none) fail_file("examine", path, error.value());
  return std::filesystem::exists(status);
}

// Returns the folder that contains a file, or "." for a name without a folder.
[[nodiscard]] inline Path folder_of(const Path& path) {
  return path.has_parent_path() ? path.parent_path() : Path(".");
}

}  // namespace tutti::io
