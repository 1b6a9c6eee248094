// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/span_of.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/io/crc32c.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_error.hpp>

namespace tutti::io {

namespace detail {

inline void write_fully(int fd, std::span<const std::byte> bytes, const Path& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file("write", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

}  // namespace detail

// Writes a file from start to end, and empties an existing file first. Small pieces are buffered: data reaches the file
// at flush(), sync() or close(), each of which throws FileError. If a writer is destroyed without close(), the file may
// be incomplete.
class FileWriter {
 public:
  explicit FileWriter(const Path& path) : FileWriter(path, path) {}
  // named: the path in messages, for a file that is first written under another name.
  FileWriter(const Path& path, Path named) : path_(path), named_(std::move(named)) {
    do fd_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    while (fd_.get() < 0 && errno == EINTR);
    if (fd_.get() < 0) fail_file("create", named_, errno);
  }

  void write(std::span<const std::byte> bytes) {
    crc_ = crc32c(bytes, crc_);
    size_ += bytes.size();
    if (buffer_.size() + bytes.size() > buffer_bytes) flush();
    if (bytes.size() >= buffer_bytes) {
      detail::write_fully(fd_.get(), bytes, named_);
    } else {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
  }
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

  // Passes all buffered data to the operating system.
  void flush() {
    // The buffer is emptied first: otherwise a second call after an error would write a part twice.
    const auto pending = std::exchange(buffer_, {});
    detail::write_fully(fd_.get(), span_of(pending), named_);
  }
  // Passes all buffered data to the disk.
  void sync() {
    flush();
    if (::fsync(fd_.get()) != 0) fail_file("sync", named_, errno);
  }
  void close() {
    flush();
    // Linux closes the descriptor even if it returns EINTR.
    if (::close(fd_.release()) != 0 && errno != EINTR) fail_file("close", named_, errno);
  }

  // Size and checksum of all bytes that were passed to write().
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint32_t crc() const noexcept { return crc_; }
  [[nodiscard]] const Path& path() const noexcept { return path_; }

 private:
  static constexpr std::size_t buffer_bytes = std::size_t{1} << 16;

  Path path_, named_;
  Descriptor fd_;
  std::vector<std::byte> buffer_;
  std::uint64_t size_ = 0;
  std::uint32_t crc_ = 0;
};

namespace detail {

template <class Fill>
void replace_file(const Path& path, bool synced, Fill&& fill) {
  const Path aside = aside_path(path);
  FileWriter writer(aside, path);
  try {
    fill(writer);
    if (synced) writer.sync();
    writer.close();
    if (::rename(aside.c_str(), path.c_str()) != 0) fail_file("replace", path, errno);
  } catch (...) {
    ::unlink(aside.c_str());
    throw;
  }
  if (synced) fsync_directory(folder_of(path));
}

}  // namespace detail

// Replaces a file by what `fill(FileWriter&)` writes. A reader, and the disk after a crash, has either the complete old
// file or the complete new one: the data is written to a temporary file, synced and renamed, and then the folder is
// synced. After an error the old file is unchanged.
template <class Fill>
requires std::invocable<Fill&, FileWriter&>
void atomic_write_file(const Path& path, Fill&& fill) { detail::replace_file(path, true, fill); }
inline void atomic_write_file(const Path& path, std::string_view text) {  // complete or not at all; throws FileError
  atomic_write_file(path, [&](FileWriter& writer) { writer.write(text); });
}
inline void atomic_write_file(const Path& path, std::span<const std::byte> bytes) {  // throws FileError
  atomic_write_file(path, [&](FileWriter& writer) { writer.write(bytes); });
}
// Like atomic_write_file() for readers, but does not wait for the disk: after a crash of the system the file may be
// empty. For files that are rewritten soon.
inline void replace_file(const Path& path, std::string_view text) {
  detail::replace_file(path, false, [&](FileWriter& writer) { writer.write(text); });
}

}  // namespace tutti::io
