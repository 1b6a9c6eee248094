// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_error.hpp>

// Common parts of all formats of record files: sets of shards and positional reads from them.
namespace tutti {

// The longest record (encoded image and its description) for which a reader allocates memory.
inline constexpr std::uint64_t most_record_bytes = std::uint64_t{1} << 28;
// The most records of a set; the sampler's limit.
inline constexpr std::uint64_t most_records = 0xFFFFFFFFU;
// The value of Records::block() for files with many records in sequence.
inline constexpr std::int64_t records_per_block = 256;

// Returns the number in `bytes` (1 to 8) little-endian bytes at p.
[[nodiscard]] inline std::uint64_t little_endian(const std::uint8_t* p, int bytes) noexcept {
  std::uint64_t v = 0;
  for (int i = bytes; i-- > 0;) v = (v << 8) | p[i];
  return v;
}
[[nodiscard]] inline std::uint32_t little_endian_32(const std::uint8_t* p) noexcept {  // from four bytes
  return static_cast<std::uint32_t>(little_endian(p, 4));
}
[[nodiscard]] inline std::uint64_t little_endian_64(const std::uint8_t* p) noexcept { return little_endian(p, 8); }

// The files of a set, opened when they are first read; at most `most_open` stay open. read() is const, safe from
// several threads at once, and throws DataError with the file's name. Files are read, not mapped: if another program
// shortens a file, that is an error and does not end the process.
class ShardFiles {
 public:
  // Throws FileError for a file that cannot be examined, and DataError for one that is not a regular file.
  explicit ShardFiles(std::vector<io::Path> paths) {
    shards_.reserve(paths.size());
    for (auto& p : paths) {
      struct stat s {};
      if (::stat(p.c_str(), &s) != 0) io::fail_file("examine", p, errno);
      if (!S_ISREG(s.st_mode)) fail<DataError>("records", {"a regular file at ", p.native()}, "another kind of file");
      shards_.push_back({std::move(p), static_cast<std::uint64_t>(s.st_size),
                         std::int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec, nullptr});
    }
  }
  ShardFiles(const ShardFiles&) = delete;
  ShardFiles& operator=(const ShardFiles&) = delete;

  [[nodiscard]] std::size_t count() const noexcept { return shards_.size(); }
  [[nodiscard]] const io::Path& path(std::size_t shard) const { return shards_[shard].path; }
  // bytes(): length in bytes. changed(): time of the last change in ns since 1970. Both when the set was opened.
  [[nodiscard]] std::uint64_t bytes(std::size_t shard) const { return shards_[shard].bytes; }
  [[nodiscard]] std::int64_t changed(std::size_t shard) const { return shards_[shard].changed; }

  // Fills `to` from byte `offset` on. Throws DataError if the file ends before.
  void read(std::size_t shard, std::uint64_t offset, std::span<std::uint8_t> to) const {
    const auto got = read_some(shard, offset, to);
    if (got < to.size())
      fail<DataError>({"file ", path(shard).native()}, {to.size(), " bytes from byte ", offset}, got,
                      "the file is truncated");
  }
  // Fills as much of `to` as the file has, and returns the number of bytes.
  [[nodiscard]] std::size_t read_some(std::size_t shard, std::uint64_t offset, std::span<std::uint8_t> to) const {
    const auto fd = open(shard);
    std::size_t got = 0;
    while (got < to.size()) {
      const ssize_t n = ::pread(fd->get(), to.data() + got, to.size() - got, static_cast<off_t>(offset + got));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) io::fail_file("read", path(shard), errno);
      if (n == 0) break;
      got += static_cast<std::size_t>(n);
    }
    return got;
  }

 private:
  static constexpr std::size_t most_open = 128;
  struct Shard {
    io::Path path;
    std::uint64_t bytes;
    std::int64_t changed;
    std::shared_ptr<const io::Descriptor> open;  // a reader holds it while it reads
  };

  [[nodiscard]] std::shared_ptr<const io::Descriptor> open(std::size_t shard) const {
    const std::lock_guard lock(mutex_);
    Shard& s = shards_[shard];
    if (!s.open) {
      s.open = std::make_shared<const io::Descriptor>(io::Descriptor::open(s.path, O_RDONLY | O_NONBLOCK, "open"));
      if (order_.size() < most_open) {
        order_.push_back(shard);
      } else {  // closes the file that was opened the longest time ago
        shards_[order_[next_]].open.reset();
        order_[next_] = shard;
        next_ = (next_ + 1) % most_open;
      }
    }
    return s.open;
  }

  mutable std::mutex mutex_;
  mutable std::vector<Shard> shards_;
  mutable std::vector<std::size_t> order_;
  mutable std::size_t next_ = 0;
};

// Reads small pieces of one file, mostly forward, a page at a time, such as the headers between long records.
class HeaderReader {
 public:
  HeaderReader(const ShardFiles& files, std::size_t shard) : files_(files), shard_(shard), page_(4096) {}
  // Returns the n bytes (at most 4,096) at `offset`; fewer at the end of the file.
  [[nodiscard]] std::span<const std::uint8_t> at(std::uint64_t offset, std::size_t n) {
    if (offset < begin_ || offset + n > begin_ + have_) {
      begin_ = offset;
      have_ = files_.read_some(shard_, offset, page_);
    }
    const auto from = static_cast<std::size_t>(offset - begin_);
    return std::span<const std::uint8_t>(page_).subspan(from, std::min(n, have_ - from));
  }

 private:
  const ShardFiles& files_;
  std::size_t shard_;
  std::vector<std::uint8_t> page_;
  std::uint64_t begin_ = 0;
  std::size_t have_ = 0;
};

// Parses "PREFIX-00017-of-01024SUFFIX".
struct ShardName {
  std::uint64_t number = 0, of = 0;
};
[[nodiscard]] inline bool parse_shard_name(std::string_view name, std::string_view prefix, std::string_view suffix,
                                           ShardName& out) {
  if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix))
    return false;
  name = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  const auto number = [&](std::uint64_t& to) {
    std::size_t digits = 0;
    for (to = 0; digits < name.size() && digits < 9 && name[digits] >= '0' && name[digits] <= '9'; ++digits)
      to = 10 * to + static_cast<std::uint64_t>(name[digits] - '0');
    name.remove_prefix(digits);
    return digits > 0;
  };
  if (!name.starts_with("-")) return false;
  name.remove_prefix(1);
  if (!number(out.number) || !name.starts_with("-of-")) return false;
  name.remove_prefix(4);
  return number(out.of) && name.empty();
}

// Returns the files PREFIX-<number>-of-<count>SUFFIX of a folder in order. Numbers start from 0 or, as in some tools,
// from 1. Returns an empty list if there are no such files or no folder. Throws DataError that names what is missing or
// does not belong to the set.
// lacking: if given, an incomplete set is accepted, and this text receives the missing files; it does not change for a
// complete set.
[[nodiscard]] inline std::vector<io::Path> find_shards(const io::Path& folder, std::string_view prefix,
                                                       std::string_view suffix, std::string* lacking = nullptr) {
  std::map<std::uint64_t, io::Path> found;
  std::uint64_t of = 0;
  io::Path first;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    ShardName name;
    const auto& path = it->path();
    if (!parse_shard_name(path.filename().string(), prefix, suffix, name)) continue;
    if (found.empty()) {
      of = name.of;
      first = path;
    }
    if (name.of != of)
      fail<DataError>({"records ", folder.native()}, "one set of shards",
                      {first.filename().native(), " and ", path.filename().native()}, "keep the files of one set only");
    if (const auto [other, is_new] = found.emplace(name.number, path); !is_new)
      fail<DataError>({"records ", folder.native()}, {"one shard ", name.number},
                      {other->second.filename().native(), " and ", path.filename().native()});
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    io::fail_file("list the folder", folder, error.value());
  std::vector<io::Path> paths;
  if (found.empty()) return paths;
  const std::uint64_t start = found.count(of) != 0 && found.count(0) == 0 ? 1 : 0;
  const auto name_of_shard = [&](std::uint64_t k) {
    const auto digits = [](std::uint64_t n) {
      const std::string d = std::to_string(n);
      return std::string(d.size() < 5 ? 5 - d.size() : 0, '0') + d;
    };
    return std::string(prefix) + "-" + digits(k) + "-of-" + digits(of) + std::string(suffix);
  };
  std::uint64_t missing = 0;
  std::string names;
  for (std::uint64_t k = start; k < start + of && missing < most_records; ++k) {
    if (const auto f = found.find(k); f != found.end()) {
      paths.push_back(f->second);
      continue;
    }
    if (++missing <= 4) names += (missing > 1 ? ", " : "") + name_of_shard(k);
    // Limits the time that a huge count in a name can cost.
    if (missing > 4 && of > 1'000'000) break;
  }
  if (missing > 0 && lacking != nullptr && paths.size() == found.size()) {
    *lacking = std::to_string(found.size()) + " of " + std::to_string(of) + " files in " + folder.string() +
               "; missing: " + names + (missing > 4 ? ", ..." : "");
    return paths;
  }
  if (missing > 0)
    fail<DataError>({"records ", folder.native()}, {"all ", of, " shards, like ", first.filename().native()},
                    {found.size(), " of them; missing: ", names, (missing > 4 ? ", ..." : "")},
                    "copy or prepare the missing files again; train_imagenet --allow-missing-shards trains on part of "
                    "a TFRecord set");
  if (found.size() != of)
    fail<DataError>({"records ", folder.native()}, {of, " shards"}, found.size(),
                    "some files have numbers that do not belong to the set");
  return paths;
}

}  // namespace tutti
