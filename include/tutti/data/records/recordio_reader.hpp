// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/data/records/record_index.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/io/tfrecord.hpp>

// RecordIO files of MXNet (dmlc-core/include/dmlc/recordio.h, python/mxnet/recordio.py): records one after the other,
// each a magic number (4 bytes), 3 bits of flag and 29 bits of length, the data, zeros up to a multiple of 4. If the
// data contains the magic number at a multiple of 4, the record is split there into parts (flag 1, then 2, the last 3)
// and the number is omitted. The data of an image record begins with IRHeader: flag (u32), label (f32), id, id2 (u64
// each), then `flag` labels (f32), then the encoded image. Files have no checksums.
namespace tutti {

namespace recordio {

inline constexpr std::uint32_t magic = 0xCED7230A;
inline constexpr std::size_t header_bytes = 8, image_header_bytes = 24;

struct PartHeader {          // Precedes each part of a record.
  std::uint32_t flag = 0;    // 0: whole, 1: first, 2: middle, 3: last part
  std::uint32_t length = 0;  // of its data
  [[nodiscard]] std::uint64_t padded() const noexcept { return (std::uint64_t{length} + 3) / 4 * 4; }
};

// Returns the header of a part; `within` says whether parts of the same record came before it. Throws DataError.
[[nodiscard]] inline PartHeader part_header(std::span<const std::uint8_t> bytes, bool within, std::string_view where) {
  if (bytes.size() < header_bytes)
    fail<DataError>(where, "a record's header of 8 bytes", bytes.size(), "the file is truncated");
  if (little_endian_32(bytes.data()) != magic)
    fail<DataError>(where, "RecordIO's magic number", little_endian_32(bytes.data()),
                    "the file is damaged, is not a RecordIO file, or its .idx belongs to another file");
  const std::uint32_t word = little_endian_32(bytes.data() + 4);
  const PartHeader h{word >> 29, word & 0x1FFFFFFFU};
  const bool fits = within ? h.flag == 2 || h.flag == 3 : h.flag == 0 || h.flag == 1;
  if (!fits)
    fail<DataError>(where, within ? "the next part of a split record" : "the first part of a record", {"flag ", h.flag},
                    "the file is damaged");
  if (h.length > most_record_bytes) fail<DataError>(where, {"at most ", most_record_bytes, " bytes"}, h.length);
  return h;
}

// Returns the bytes of the record that begins at `at`, reading only its headers. Throws DataError.
[[nodiscard]] inline std::uint32_t frame_length(HeaderReader& reader, std::uint64_t at, std::uint64_t file_bytes,
                                                std::string_view where) {
  const std::uint64_t begin = at;
  for (bool within = false;; within = true) {
    const PartHeader h = part_header(reader.at(at, header_bytes), within, where);
    const std::uint64_t left = file_bytes - at;
    if (left < header_bytes + h.padded())
      fail<DataError>(where, {"a part of ", h.length, " bytes"}, left - header_bytes, "the file is truncated");
    at += header_bytes + h.padded();
    if (at - begin > most_record_bytes)
      fail<DataError>(where, {"a record of at most ", most_record_bytes, " bytes"}, "a longer one");
    if (h.flag == 0 || h.flag == 3) return static_cast<std::uint32_t>(at - begin);
  }
}

// Converts a record's bytes in the file into its data, in place. Throws DataError.
inline void unframe(std::vector<std::uint8_t>& frame, std::string_view where) {
  std::size_t from = 0, to = 0;
  for (bool within = false;; within = true) {
    const auto rest = std::span<const std::uint8_t>(frame).subspan(from);
    const PartHeader h = part_header(rest, within, where);
    if (rest.size() < header_bytes + h.padded())
      fail<DataError>(where, {"a part of ", h.length, " bytes"}, rest.size() - header_bytes, "the file is truncated");
    if (within) {  // the number that the writer omitted; there is room, because a header is longer
      for (int i = 0; i < 4; ++i) frame[to++] = static_cast<std::uint8_t>(magic >> (8 * i));
    }
    std::memmove(frame.data() + to, frame.data() + from + header_bytes, h.length);
    to += h.length;
    from += static_cast<std::size_t>(header_bytes + h.padded());
    if (h.flag == 0 || h.flag == 3) break;
  }
  if (from != frame.size())
    fail<DataError>(where, {"a record of ", frame.size(), " bytes"}, from,
                    "the file has changed since its index was made");
  frame.resize(to);
}

// Returns all records of a file by reading through it. Throws DataError that names file and record.
[[nodiscard]] inline std::vector<RecordSpan> scan(const ShardFiles& files, std::size_t file) {
  std::vector<RecordSpan> found;
  HeaderReader reader(files, file);
  const std::uint64_t bytes = files.bytes(file);
  for (std::uint64_t at = 0; at < bytes;) {
    const std::string where =
        files.path(file).string() + " record " + std::to_string(found.size()) + " at byte " + std::to_string(at);
    found.push_back({at, frame_length(reader, at, bytes, where)});
    at += found.back().length;
  }
  return found;
}

// Returns the records of `file` that its .idx lists, in that order: lines "key<tab>offset". Throws DataError that names
// the line.
[[nodiscard]] inline std::vector<RecordSpan> scan_listed(const ShardFiles& files, std::size_t file,
                                                         std::size_t list_file) {
  const std::string name = files.path(list_file).string();
  if (files.bytes(list_file) > most_record_bytes)
    fail<DataError>(name, {"a list of at most ", most_record_bytes, " bytes"}, files.bytes(list_file));
  std::string text(static_cast<std::size_t>(files.bytes(list_file)), '\0');
  files.read(list_file, 0, std::span(reinterpret_cast<std::uint8_t*>(text.data()), text.size()));
  std::vector<RecordSpan> found;
  HeaderReader reader(files, file);
  std::string_view rest = text;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const auto end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    std::uint64_t key = 0, offset = 0;
    const char* const last = line.data() + line.size();
    const auto k = std::from_chars(line.data(), last, key);
    const bool tab = k.ec == std::errc() && k.ptr != last && *k.ptr == '\t';
    const auto o = tab ? std::from_chars(k.ptr + 1, last, offset) : k;
    const std::string where = name + " line " + std::to_string(number);
    if (!tab || o.ec != std::errc() || o.ptr != last)
      fail<DataError>(where, "key, tab, offset", {"\"", line.substr(0, 60), "\""},
                      "remove the .idx file to read the .rec file from start to end");
    if (offset >= files.bytes(file))
      fail<DataError>(where, {"an offset within the ", files.bytes(file), " bytes of the .rec file"}, offset,
                      "the .idx belongs to another file, or the .rec file is truncated");
    found.push_back({offset, frame_length(reader, offset, files.bytes(file), where)});
  }
  return found;
}

// The data of an image record.
struct Image {
  float label = 0;  // the first one of several
  std::uint64_t id = 0;
  std::span<const std::uint8_t> encoded;
};
[[nodiscard]] inline Image parse_image(std::span<const std::uint8_t> data, std::string_view where) {
  if (data.size() < image_header_bytes) fail<DataError>(where, "an image record's header of 24 bytes", data.size());
  const std::uint64_t labels = little_endian_32(data.data());
  if (labels > (data.size() - image_header_bytes) / 4)
    fail<DataError>(where, {labels, " labels of 4 bytes"}, {data.size() - image_header_bytes, " bytes"});
  const std::uint8_t* label = data.data() + (labels > 0 ? image_header_bytes : 4);
  return {std::bit_cast<float>(little_endian_32(label)), little_endian_64(data.data() + 8),
          data.subspan(image_header_bytes + 4 * static_cast<std::size_t>(labels))};
}

// Appends `data` as one record.
inline void append_record(std::string& out, std::string_view data) {
  std::string word;
  io::append_little_endian(word, magic, 4);
  const auto part = [&](std::uint32_t flag, std::string_view bytes) {
    if (bytes.size() > most_record_bytes)
      fail<UsageError>("RecordIO", {"at most ", most_record_bytes, " bytes"}, bytes.size());
    out += word;
    io::append_little_endian(out, (std::uint64_t{flag} << 29) | bytes.size(), 4);
    out += bytes;
    out.append((4 - bytes.size() % 4) % 4, '\0');
  };
  std::size_t begin = 0;
  for (std::size_t at = 0; at + 4 <= data.size(); at += 4)
    if (data.compare(at, 4, word) == 0) {
      part(begin == 0 ? 1 : 2, data.substr(begin, at - begin));
      begin = at + 4;
    }
  part(begin == 0 ? 0 : 3, data.substr(begin));
}

}  // namespace recordio

// Writes FILE.rec and FILE.idx. Both exist, complete, after finish(). Throws io::FileError.
class RecordIoWriter {
 public:
  explicit RecordIoWriter(io::Path rec)
      : rec_(std::move(rec)),
        list_path_(io::Path(rec_).replace_extension(".idx")),
        aside_(io::aside_path(rec_)),
        out_(aside_, rec_) {}
  RecordIoWriter(const RecordIoWriter&) = delete;
  RecordIoWriter& operator=(const RecordIoWriter&) = delete;
  ~RecordIoWriter() {
    if (!finished_) ::unlink(aside_.c_str());
  }
  void add(std::int32_t label, std::span<const std::uint8_t> encoded) {
    data_.clear();
    record_.clear();
    io::append_little_endian(data_, 0, 4);
    io::append_little_endian(data_, std::bit_cast<std::uint32_t>(static_cast<float>(label)), 4);
    io::append_little_endian(data_, number_, 8);
    io::append_little_endian(data_, 0, 8);
    data_.append(reinterpret_cast<const char*>(encoded.data()), encoded.size());
    recordio::append_record(record_, data_);
    list_ += std::to_string(number_++) + "\t" + std::to_string(out_.size()) + "\n";
    out_.write(record_);
  }
  void finish() {
    out_.sync();
    out_.close();
    io::rename_path(aside_, rec_);
    finished_ = true;
    io::atomic_write_file(list_path_, list_);
  }

 private:
  io::Path rec_, list_path_, aside_;
  io::FileWriter out_;
  std::string data_, record_, list_;
  std::uint64_t number_ = 0;
  bool finished_ = false;
};

// The image records of a set of RecordIO files as Records. If FILE.idx exists next to FILE.rec, reads the records that
// it lists, in its order; otherwise all records. Labels are whole numbers in [0, classes). Copies share it.
class RecordIoFiles {
 public:
  RecordIoFiles(std::vector<io::Path> paths, const io::Path& index, int classes)
      : shared_(std::make_shared<const Shared>(std::move(paths), index)), classes_(classes) {}

  [[nodiscard]] std::int64_t size() const noexcept { return shared_->index.size(); }
  [[nodiscard]] int classes() const noexcept { return classes_; }
  [[nodiscard]] std::int64_t block() const noexcept { return records_per_block; }
  [[nodiscard]] std::string where(std::int64_t i) const {
    const auto place = shared_->index.place(i);
    return shared_->files.path(place.file).string() + " record " + std::to_string(place.record);
  }
  [[nodiscard]] std::int32_t read(std::int64_t i, std::vector<std::uint8_t>& bytes) const {
    const RecordSpan span = shared_->index.span(i);
    bytes.resize(span.length);
    shared_->files.read(shared_->index.place(i).file, span.offset, bytes);
    try {
      recordio::unframe(bytes, "RecordIO");
      const auto image = recordio::parse_image(bytes, "RecordIO");
      if (!(image.label >= 0 && image.label < static_cast<float>(classes_)) || image.label != std::floor(image.label))
        fail<DataError>("RecordIO", {"a label of 0 to ", classes_ - 1}, image.label);
      if (image.encoded.empty()) fail<DataError>("RecordIO", "an encoded image", "0 bytes");
      const auto label = static_cast<std::int32_t>(image.label);
      bytes.erase(bytes.begin(), bytes.end() - static_cast<std::ptrdiff_t>(image.encoded.size()));
      return label;
    } catch (const DataError& e) {
      throw DataError(where(i) + ": " + e.what());
    }
  }
  [[nodiscard]] const RecordIndex& index() const noexcept { return shared_->index; }

 private:
  struct Shared {
    // The .rec files, followed by the existing .idx files; list[k] is the .idx of file k.
    std::vector<std::optional<std::size_t>> list;
    ShardFiles files;
    RecordIndex index;
    Shared(std::vector<io::Path> paths, const io::Path& path)
        : files(with_lists(std::move(paths), list)),
          index(RecordIndex::open(files, RecordIndex::Kind::recordio, path, [this](std::size_t f) {
            if (f >= list.size()) return std::vector<RecordSpan>{};
            return list[f] ? recordio::scan_listed(files, f, *list[f]) : recordio::scan(files, f);
          })) {}
    [[nodiscard]] static std::vector<io::Path> with_lists(std::vector<io::Path> paths,
                                                          std::vector<std::optional<std::size_t>>& list) {
      for (std::size_t k = 0, n = paths.size(); k < n; ++k) {
        auto idx = io::Path(paths[k]).replace_extension(".idx");
        const bool there = is_file(idx);
        list.push_back(there ? std::optional(paths.size()) : std::nullopt);
        if (there) paths.push_back(std::move(idx));
      }
      return paths;
    }
  };
  std::shared_ptr<const Shared> shared_;
  int classes_;
};

}  // namespace tutti
