// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/io/cache_folder.hpp>
#include <tutti/io/crc32c.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/tfrecord.hpp>

// The positions of all records of a set of files. TFRecord and RecordIO files do not list them, so finding the records
// requires reading through the files. This is done once, and the result is kept in an index file
// (docs/reference/formats.md): next to the data or, if that folder is read-only, in a cache folder. Positions are read
// from that file when needed; they use no memory.
namespace tutti {

// The bytes of one record in its file, including headers and padding; at most most_record_bytes + 16.
struct RecordSpan {
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
};

class RecordIndex {  // The position of each record of a set.
 public:
  // Written into the index file, so that the index of one format is not used for another.
  enum class Kind : std::uint32_t { tfrecord = 1, recordio = 2 };
  // Returns the records of one file, in the order of the set. Called from several threads at once.
  using Scan = std::function<std::vector<RecordSpan>(std::size_t file)>;

  // Returns the index of `files`. Uses the one at `beside` or in the cache folder if it is complete and the files still
  // have the same names, lengths and times of change. Otherwise makes it with `scan` and keeps it. If processes open a
  // set at the same time, all wait for the first one if the file system has locks; otherwise each writes a temporary
  // file with the same content and renames it. Throws what `scan` throws, and DataError for a set without records or
  // with too many.
  [[nodiscard]] static RecordIndex open(const ShardFiles& files, Kind kind, const io::Path& beside, const Scan& scan) {
    const io::Path cached = in_cache(files, beside);
    const auto existing = [&]() -> std::optional<RecordIndex> {
      for (const auto& path : {beside, cached})
        if (auto found = load(path, files, kind)) return found;
      return std::nullopt;
    };
    if (auto found = existing()) return std::move(*found);
    for (const auto& path : {beside, cached}) {
      const io::Path folder = io::folder_of(path);
      if (path.empty()) continue;
      if (path == cached) {
        std::error_code error;
        std::filesystem::create_directories(folder, error);
      }
      if (::access(folder.c_str(), W_OK) != 0) continue;
      const auto lock = locked(folder);
      if (auto found = existing()) return std::move(*found);  // another process has made it meanwhile
      std::exception_ptr scan_error;
      try {
        io::atomic_write_file(path, [&](io::FileWriter& out) { build(files, kind, scan, out, scan_error); });
        if (auto found = load(path, files, kind)) return std::move(*found);
      } catch (const io::FileError&) {
        if (scan_error) std::rethrow_exception(scan_error);
      }
    }
    // No folder is writable: uses an unnamed file, for this process only.
    std::string name = (std::filesystem::temp_directory_path() / "tutti-index-XXXXXX").string();
    io::Descriptor fd(::mkostemp(name.data(), O_CLOEXEC));
    if (fd.get() < 0) io::fail_file("create", name, errno);
    std::exception_ptr scan_error;
    try {
      io::FileWriter out{io::Path(name)};
      build(files, kind, scan, out, scan_error);
      out.close();
    } catch (...) {
      ::unlink(name.c_str());
      throw;
    }
    ::unlink(name.c_str());
    auto found = load(std::move(fd), files, kind);
    if (!found) fail<DataError>("index", {"an index file in ", name}, "another index", "its disk may be damaged");
    return std::move(*found);
  }

  // Returns no value unless the file is a complete index of exactly these files.
  [[nodiscard]] static std::optional<RecordIndex> load(const io::Path& path, const ShardFiles& files, Kind kind) {
    if (path.empty()) return std::nullopt;
    try {
      auto found = load(io::Descriptor::open(path, O_RDONLY | O_NONBLOCK, "open"), files, kind);
      if (found) found->path_ = path;
      return found;
    } catch (const io::FileError&) {
      return std::nullopt;
    }
  }
  [[nodiscard]] static std::optional<RecordIndex> load(io::Descriptor fd, const ShardFiles& files, Kind kind) {
    struct stat s {};
    if (::fstat(fd.get(), &s) != 0 || !S_ISREG(s.st_mode)) return std::nullopt;
    const auto bytes = static_cast<std::uint64_t>(s.st_size), table = file_bytes * std::uint64_t{files.count()};
    if (bytes < header_bytes + table + footer_bytes) return std::nullopt;
    const std::uint64_t spans = bytes - header_bytes - table - footer_bytes;
    if (spans % span_bytes != 0 || spans / span_bytes > most_records) return std::nullopt;
    RecordIndex index;
    index.fd_ = std::move(fd);
    const std::uint64_t records = spans / span_bytes;

    std::vector<std::uint8_t> tail(static_cast<std::size_t>(table + footer_bytes));
    if (!index.read_at(header_bytes + spans, tail)) return std::nullopt;
    const std::uint8_t* footer = tail.data() + table;
    if (little_endian_64(footer) != records || little_endian_32(footer + 8) != files.count()) return std::nullopt;
    index.first_.reserve(files.count() + 1);
    index.first_.push_back(0);
    for (std::size_t f = 0; f < files.count(); ++f) {
      const std::uint8_t* t = tail.data() + file_bytes * f;
      const std::uint64_t of_file = little_endian_64(t + 16);
      if (little_endian_64(t) != files.bytes(f) ||
          static_cast<std::int64_t>(little_endian_64(t + 8)) != files.changed(f) ||
          little_endian_32(t + 24) != name_crc(files, f) || of_file > records - index.first_.back())
        return std::nullopt;
      index.first_.push_back(index.first_.back() + of_file);
    }
    if (index.first_.back() != records || records == 0) return std::nullopt;

    // Reads one piece at a time, so that memory does not depend on the set's size.
    std::vector<std::uint8_t> piece(std::min<std::uint64_t>(spans, span_bytes * 4096));
    std::array<std::uint8_t, header_bytes> header{};
    if (!index.read_at(0, header) || header != header_of(kind)) return std::nullopt;
    std::uint32_t crc = io::crc32c(std::as_bytes(std::span(header)));
    std::size_t file = 0;
    for (std::uint64_t r = 0; r < records;) {
      const auto n = std::min<std::uint64_t>(records - r, 4096);
      const auto part = std::span(piece).first(static_cast<std::size_t>(n * span_bytes));
      if (!index.read_at(header_bytes + r * span_bytes, part)) return std::nullopt;
      crc = io::crc32c(std::as_bytes(part), crc);
      for (std::uint64_t k = 0; k < n; ++k, ++r) {
        while (r >= index.first_[file + 1]) ++file;
        const RecordSpan span = parse(part.data() + k * span_bytes);
        if (span.offset > files.bytes(file) || span.length > files.bytes(file) - span.offset ||
            span.length > most_record_bytes + 16)
          return std::nullopt;
      }
    }
    crc = io::crc32c(std::as_bytes(std::span(tail).first(tail.size() - 4)), crc);
    if (crc != little_endian_32(footer + 12)) return std::nullopt;
    return index;
  }

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(first_.back()); }
  // The file of record i, and the number of records before it in that file.
  struct Place {
    std::size_t file = 0;
    std::int64_t record = 0;
  };
  [[nodiscard]] Place place(std::int64_t i) const {
    const auto r = static_cast<std::uint64_t>(i);
    const auto after = std::upper_bound(first_.begin(), first_.end(), r);
    const auto file = static_cast<std::size_t>(after - first_.begin()) - 1;
    return {file, static_cast<std::int64_t>(r - first_[file])};
  }
  // Returns the position of record i in its file.
  [[nodiscard]] RecordSpan span(std::int64_t i) const {
    std::array<std::uint8_t, span_bytes> bytes{};
    if (!read_at(header_bytes + static_cast<std::uint64_t>(i) * span_bytes, bytes))
      fail<DataError>({"index ", path_.native()}, {"the position of record ", i}, "the end of the file",
                      "the index was truncated while it was in use");
    return parse(bytes.data());
  }
  // Returns the index file; empty if it could not be kept.
  [[nodiscard]] const io::Path& path() const noexcept { return path_; }

 private:
  static constexpr std::size_t header_bytes = 16, span_bytes = 12, file_bytes = 32, footer_bytes = 16;
  static constexpr std::uint32_t version = 1;

  RecordIndex() = default;

  [[nodiscard]] static std::array<std::uint8_t, header_bytes> header_of(Kind kind) {
    std::string h = "tuttiidx";
    io::append_little_endian(h, version, 4);
    io::append_little_endian(h, static_cast<std::uint32_t>(kind), 4);
    std::array<std::uint8_t, header_bytes> out{};
    std::copy(h.begin(), h.end(), out.begin());
    return out;
  }
  [[nodiscard]] static std::uint32_t name_crc(const ShardFiles& files, std::size_t f) {
    return io::crc32c(files.path(f).filename().string());
  }
  [[nodiscard]] static RecordSpan parse(const std::uint8_t* p) {
    return {little_endian_64(p), little_endian_32(p + 8)};
  }

  // Returns "<hash of the data's absolute path>-<name>" in the cache folder.
  [[nodiscard]] static io::Path in_cache(const ShardFiles& files, const io::Path& beside) {
    const io::Path folder = io::cache_folder();
    if (folder.empty() || files.count() == 0) return {};
    std::error_code error;
    auto full = std::filesystem::weakly_canonical(beside, error);
    if (error) full = std::filesystem::absolute(beside, error);
    return folder / (io::hash_name(full.string()) + "-" + beside.filename().string());
  }

  // Returns a lock that is held as long as the descriptor exists; an empty descriptor if the file system has no locks.
  [[nodiscard]] static io::Descriptor locked(const io::Path& folder) {
    try {
      io::Descriptor fd = io::Descriptor::open(folder, O_RDONLY | O_DIRECTORY, "open the folder");
      int status = 0;
      do status = ::flock(fd.get(), LOCK_EX);
      while (status != 0 && errno == EINTR);
      return fd;
    } catch (const io::FileError&) {
      return {};
    }
  }

  static void build(const ShardFiles& files, Kind kind, const Scan& scan, io::FileWriter& out,
                    std::exception_ptr& scan_error) {
    const auto header = header_of(kind);
    out.write(std::as_bytes(std::span(header)));
    std::string table, text;
    std::uint64_t records = 0;
    // Most of the time is spent waiting for the disk, so more threads than cores help.
    constexpr std::size_t at_once = 16;
    ThreadPool pool(static_cast<int>(std::clamp<std::size_t>(files.count(), 1, 8)));
    for (std::size_t begin = 0; begin < files.count(); begin += at_once) {
      const std::size_t n = std::min(at_once, files.count() - begin);
      std::vector<std::vector<RecordSpan>> found(n);
      try {
        pool.run(static_cast<int>(n), [&](int task, int) {
          const auto k = static_cast<std::size_t>(task);
          found[k] = scan(begin + k);
        });
        for (const auto& f : found) records += f.size();
        if (records > most_records)
          fail<DataError>("records", {"at most ", most_records, " records in a set"}, records);
      } catch (...) {
        scan_error = std::current_exception();
        throw;
      }
      for (std::size_t k = 0; k < n; ++k) {
        for (const RecordSpan& s : found[k]) {
          text.clear();
          io::append_little_endian(text, s.offset, 8);
          io::append_little_endian(text, s.length, 4);
          out.write(text);
        }
        io::append_little_endian(table, files.bytes(begin + k), 8);
        io::append_little_endian(table, static_cast<std::uint64_t>(files.changed(begin + k)), 8);
        io::append_little_endian(table, found[k].size(), 8);
        io::append_little_endian(table, name_crc(files, begin + k), 4);
        io::append_little_endian(table, 0, 4);
      }
    }
    if (records == 0) {
      try {
        fail<DataError>("records", "1 record or more",
                        {"no record in ", files.count(), " files like ", files.path(0).native()});
      } catch (...) {
        scan_error = std::current_exception();
        throw;
      }
    }
    io::append_little_endian(table, records, 8);
    io::append_little_endian(table, files.count(), 4);
    out.write(table);
    text.clear();
    io::append_little_endian(text, out.crc(), 4);
    out.write(text);
  }

  [[nodiscard]] bool read_at(std::uint64_t offset, std::span<std::uint8_t> to) const {
    while (!to.empty()) {
      const ssize_t n = ::pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      offset += static_cast<std::uint64_t>(n);
      to = to.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }

  io::Descriptor fd_;
  io::Path path_;
  std::vector<std::uint64_t> first_;  // the first record of each file, and the total number
};

}  // namespace tutti
