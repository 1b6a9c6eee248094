// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/io/aside.hpp>
#include <tutti/io/crc32c.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/tfrecord.hpp>

// tutti's own files of encoded images (docs/reference/formats.md): a header, the images, an index, a footer. Opening a
// set reads and checks the indexes but does not keep them; each entry is read again together with its record. A CRC
// covers every byte of a file.
namespace tutti {

// Properties that the shards of a set share, and the number of this shard.
struct PackedShardInfo {
  std::uint32_t classes = 0;
  std::uint32_t shard = 0, shards = 1;
  // The same in all shards of a set and random, so that files of two sets are not mixed up.
  std::uint64_t set_id = 0;
  std::vector<std::string> class_names;  // one per class, or empty
  friend bool operator==(const PackedShardInfo&, const PackedShardInfo&) = default;
};

namespace packed {

inline constexpr std::string_view magic = "tuttipak", end_magic = "tuttiend";
inline constexpr std::uint32_t version = 1;
// magic 8, version 4, classes 4, shard 4, shards 4, set id 8, bytes of the names 4, CRC of all that and of the names 4.
inline constexpr std::size_t header_bytes = 40;
// offset 8, length 4, label 4, CRC of the image 4.
inline constexpr std::size_t entry_bytes = 20;
// records 8, offset of the index 8, CRC of the index 4, CRC of the 20 bytes before 4, end magic 8.
inline constexpr std::size_t footer_bytes = 32;
inline constexpr std::uint32_t most_classes = 1U << 24, most_shards = 1U << 20, most_name_bytes = 1U << 26;

struct Entry {  // An entry of the index: the location of an image.
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
  std::int32_t label = 0;
  std::uint32_t crc = 0;
};
[[nodiscard]] inline Entry parse_entry(const std::uint8_t* p) noexcept {  // of 20 bytes
  return {little_endian_64(p), little_endian_32(p + 8), static_cast<std::int32_t>(little_endian_32(p + 12)),
          little_endian_32(p + 16)};
}

// Throws E unless `info` can be stored in a header.
template <class E>
void check(const PackedShardInfo& info, std::string_view where) {
  if (info.classes < 1 || info.classes > most_classes) fail<E>(where, "1 to 2^24 classes", info.classes);
  if (info.shards < 1 || info.shards > most_shards || info.shard >= info.shards)
    fail<E>(where, "a shard of 1 to 2^20", {info.shard, " of ", info.shards});
  if (!info.class_names.empty() && info.class_names.size() != info.classes)
    fail<E>(where, {"a name for each of ", info.classes, " classes"}, info.class_names.size());
}

// Returns header and names. Names must not contain newlines.
[[nodiscard]] inline std::string header(const PackedShardInfo& info) {
  check<UsageError>(info, "packed shard");
  std::string names;
  for (const auto& n : info.class_names) {
    if (n.find('\n') != std::string::npos) fail<UsageError>("packed shard", "names without newlines", n);
    names += n + "\n";
  }
  if (names.size() > most_name_bytes) fail<UsageError>("packed shard", "at most 2^26 bytes of names", names.size());
  std::string h(magic);
  for (const std::uint32_t v : {version, info.classes, info.shard, info.shards}) io::append_little_endian(h, v, 4);
  io::append_little_endian(h, info.set_id, 8);
  io::append_little_endian(h, names.size(), 4);
  io::append_little_endian(h, io::crc32c(names, io::crc32c(h)), 4);
  return h + names;
}

// What is known about one file after it has been checked.
struct Shard {
  PackedShardInfo info;
  std::uint64_t index = 0;  // offset
  std::uint64_t records = 0;
};

[[nodiscard]] inline PackedShardInfo read_header(const ShardFiles& files, std::size_t f, const std::string& where,
                                                 std::uint64_t& end) {
  std::array<std::uint8_t, header_bytes> h{};
  files.read(f, 0, h);
  const auto at = [&](std::size_t k) { return little_endian_32(h.data() + k); };
  if (std::string_view(reinterpret_cast<const char*>(h.data()), 8) != magic)
    fail<DataError>(where, "a packed shard, which begins with \"tuttipak\"", "other bytes");
  if (at(8) != version)
    fail<DataError>(where, {"version ", version}, at(8), "a newer tutti wrote it, or the file is damaged");
  const std::uint32_t bytes = at(32);
  if (bytes > most_name_bytes || bytes > files.bytes(f) - header_bytes - footer_bytes)
    fail<DataError>(where, "names that fit into the file", {bytes, " bytes"});
  std::string names(bytes, '\0');
  files.read(f, header_bytes, std::span(reinterpret_cast<std::uint8_t*>(names.data()), names.size()));
  if (io::crc32c(names, io::crc32c(std::as_bytes(std::span(h).first(36)))) != at(36))
    fail<DataError>(where, "a header with its CRC", "another CRC", "the file is damaged");
  PackedShardInfo info{at(12), at(16), at(20), little_endian_64(h.data() + 24), {}};
  for (std::string_view rest = names; !rest.empty();) {
    const auto line = rest.substr(0, rest.find('\n'));
    info.class_names.emplace_back(line);
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  check<DataError>(info, where);
  end = header_bytes + bytes;
  return info;
}

// Reads and checks everything except the images. Throws DataError that names the file and, if one is affected, the
// record.
[[nodiscard]] inline Shard open(const ShardFiles& files, std::size_t f) {
  const std::string where = files.path(f).string();
  const std::uint64_t bytes = files.bytes(f);
  if (bytes < header_bytes + footer_bytes)
    fail<DataError>(where, {"a packed shard of at least ", header_bytes + footer_bytes, " bytes"}, bytes,
                    "the file is truncated");
  Shard shard;
  std::uint64_t expected = 0;  // offset of the next image: images have no gaps between them
  shard.info = read_header(files, f, where, expected);

  std::array<std::uint8_t, footer_bytes> footer{};
  files.read(f, bytes - footer_bytes, footer);
  if (std::string_view(reinterpret_cast<const char*>(footer.data()) + 24, 8) != end_magic)
    fail<DataError>(where, "a packed shard, which ends with \"tuttiend\"", "other bytes", "the file is truncated");
  if (io::crc32c(std::as_bytes(std::span(footer).first(20))) != little_endian_32(footer.data() + 20))
    fail<DataError>(where, "a footer with its CRC", "another CRC", "the file is damaged");
  shard.records = little_endian_64(footer.data());
  shard.index = little_endian_64(footer.data() + 8);
  if (shard.records > most_records || shard.index < expected ||
      shard.index != bytes - footer_bytes - std::min(entry_bytes * shard.records, bytes - footer_bytes))
    fail<DataError>(where, "an index between the images and the footer",
                    {shard.records, " records, index at byte ", shard.index});

  std::vector<std::uint8_t> piece(std::min<std::uint64_t>(shard.records, 4096) * entry_bytes);
  std::uint32_t crc = 0;
  std::string bad;  // error of an entry; an error of the index's CRC is more helpful and is reported first
  for (std::uint64_t r = 0; r < shard.records;) {
    const auto n = std::min<std::uint64_t>(shard.records - r, 4096);
    const auto part = std::span(piece).first(static_cast<std::size_t>(n * entry_bytes));
    files.read(f, shard.index + r * entry_bytes, part);
    crc = io::crc32c(std::as_bytes(part), crc);
    for (std::uint64_t k = 0; k < n; ++k, ++r) {
      const Entry e = parse_entry(part.data() + k * entry_bytes);
      if (bad.empty() && (e.offset != expected || e.length > most_record_bytes || e.length > shard.index - expected))
        bad = "record " + std::to_string(r) + " of " + std::to_string(e.length) + " bytes at byte " +
              std::to_string(e.offset);
      if (bad.empty() && (e.label < 0 || e.label >= static_cast<std::int64_t>(shard.info.classes)))
        bad = "record " + std::to_string(r) + " with label " + std::to_string(e.label);
      if (bad.empty()) expected += e.length;
    }
  }
  if (crc != little_endian_32(footer.data() + 16))
    fail<DataError>(where, "an index with its CRC", "another CRC", "the file is damaged");
  if (!bad.empty()) fail<DataError>(where, {"consecutive images, labels of 0 to ", shard.info.classes - 1}, bad);
  if (expected != shard.index)
    fail<DataError>(where, {"an index at the end of the images, byte ", expected}, shard.index);
  return shard;
}

}  // namespace packed

// A set of packed shards as Records, in the order of the files. Memory does not grow with the number of records. Copies
// share it.
class PackedShards {
 public:
  // Throws DataError for a damaged file and for files that are not the shards 0, 1, ... of one set.
  explicit PackedShards(std::vector<io::Path> paths) : shared_(std::make_shared<const Shared>(std::move(paths))) {}

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(shared_->first.back()); }
  [[nodiscard]] int classes() const noexcept { return static_cast<int>(shared_->info.classes); }
  [[nodiscard]] std::int64_t block() const noexcept { return records_per_block; }
  [[nodiscard]] const std::vector<std::string>& class_names() const noexcept { return shared_->info.class_names; }
  // Returns size and label of record i without reading its image.
  [[nodiscard]] packed::Entry entry(std::int64_t i) const {
    const auto [shard, record] = place(i);
    std::array<std::uint8_t, packed::entry_bytes> bytes{};
    shared_->files.read(shard, shared_->index[shard] + record * packed::entry_bytes, bytes);
    return packed::parse_entry(bytes.data());
  }
  [[nodiscard]] std::int32_t read(std::int64_t i, std::vector<std::uint8_t>& bytes) const {
    const packed::Entry e = entry(i);
    const std::size_t shard = place(i).shard;
    if (e.offset > shared_->index[shard] || e.length > shared_->index[shard] - e.offset || e.label < 0 ||
        e.label >= classes())
      fail<DataError>(where(i), "the index that the file had at its opening", "another index",
                      "the file was changed while it was in use");
    bytes.resize(e.length);
    shared_->files.read(shard, e.offset, bytes);
    if (io::crc32c(std::as_bytes(std::span(bytes))) != e.crc)
      fail<DataError>(where(i), "an image with its CRC", "another CRC", "the record is damaged");
    if (bytes.empty()) fail<DataError>(where(i), "an encoded image", "0 bytes");
    return e.label;
  }
  [[nodiscard]] std::string where(std::int64_t i) const {
    const auto [shard, record] = place(i);
    return shared_->files.path(shard).string() + " record " + std::to_string(record);
  }

 private:
  struct Place {
    std::size_t shard = 0;
    std::uint64_t record = 0;
  };
  struct Shared {
    ShardFiles files;
    PackedShardInfo info;
    std::vector<std::uint64_t> first{0}, index;  // per shard: records before it, offset of its index

    explicit Shared(std::vector<io::Path> paths) : files(std::move(paths)) {
      if (files.count() == 0) fail<DataError>("packed shards", "1 file or more", "no file");
      for (std::size_t f = 0; f < files.count(); ++f) {
        packed::Shard shard = packed::open(files, f);
        if (f == 0) info = shard.info;
        if (shard.info.shards != files.count() || shard.info.shard != f)
          fail<DataError>(files.path(f).native(), {"shard ", f, " of ", files.count()},
                          {"shard ", shard.info.shard, " of ", shard.info.shards},
                          "a shard is missing, or a file was renamed");
        shard.info.shard = 0;
        if (shard.info != info)
          fail<DataError>(files.path(f).native(), {"a shard of the same set as ", files.path(0).native()},
                          "a shard of another set", "keep the files of one set only");
        index.push_back(shard.index);
        first.push_back(first.back() + shard.records);
      }
      if (first.back() < 1 || first.back() > most_records)
        fail<DataError>(files.path(0).native(), {"1 to ", most_records, " records in the set"}, first.back());
    }
  };
  [[nodiscard]] Place place(std::int64_t i) const {
    const auto r = static_cast<std::uint64_t>(i);
    const auto after = std::upper_bound(shared_->first.begin(), shared_->first.end(), r);
    const auto shard = static_cast<std::size_t>(after - shared_->first.begin()) - 1;
    return {shard, r - shared_->first[shard]};
  }
  std::shared_ptr<const Shared> shared_;
};

// Writes one shard. The file exists, complete and synced, after finish(). Keeps the index, 20 bytes for each record, in
// memory.
class PackedShardWriter {
 public:
  PackedShardWriter(io::Path path, const PackedShardInfo& info)
      : path_(std::move(path)),
        classes_(info.classes),
        header_(packed::header(info)),
        aside_(io::aside_path(path_)),
        out_(aside_, path_) {
    out_.write(header_);
  }
  PackedShardWriter(const PackedShardWriter&) = delete;
  PackedShardWriter& operator=(const PackedShardWriter&) = delete;
  ~PackedShardWriter() {
    if (!finished_) ::unlink(aside_.c_str());
  }
  // Throws UsageError for a label outside [0, classes) and for an image that is empty or too long.
  void add(std::int32_t label, std::span<const std::uint8_t> encoded) {
    if (label < 0 || static_cast<std::uint32_t>(label) >= classes_)
      fail<UsageError>("packed shard", {"a label of 0 to ", classes_ - 1}, label);
    if (encoded.empty() || encoded.size() > most_record_bytes)
      fail<UsageError>("packed shard", {"an image of 1 to ", most_record_bytes, " bytes"}, encoded.size());
    io::append_little_endian(index_, out_.size(), 8);
    io::append_little_endian(index_, encoded.size(), 4);
    io::append_little_endian(index_, static_cast<std::uint32_t>(label), 4);
    io::append_little_endian(index_, io::crc32c(std::as_bytes(encoded)), 4);
    out_.write(std::as_bytes(encoded));
    ++records_;
  }
  void finish() {
    std::string footer;
    io::append_little_endian(footer, records_, 8);
    io::append_little_endian(footer, out_.size(), 8);
    io::append_little_endian(footer, io::crc32c(index_), 4);
    io::append_little_endian(footer, io::crc32c(footer), 4);
    footer += packed::end_magic;
    out_.write(index_);
    out_.write(footer);
    out_.sync();
    out_.close();
    io::rename_path(aside_, path_);
    finished_ = true;
    io::fsync_directory(io::folder_of(path_));
  }
  [[nodiscard]] std::uint64_t records() const noexcept { return records_; }

 private:
  io::Path path_;
  std::uint32_t classes_;
  std::string header_;
  io::Path aside_;
  io::FileWriter out_;
  std::string index_;
  std::uint64_t records_ = 0;
  bool finished_ = false;
};

}  // namespace tutti
