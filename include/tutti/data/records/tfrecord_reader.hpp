// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/records/record_index.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/io/crc32c.hpp>
#include <tutti/io/file.hpp>

// TFRecord files: records one after the other, each framed by its length (8 bytes), the masked CRC-32C of the length,
// the payload and its masked CRC-32C (tensorflow/core/lib/io/record_reader.cc). io/tfrecord.hpp writes them.
namespace tutti {

namespace tfrecord {

inline constexpr std::uint64_t header_bytes = 12, footer_bytes = 4;

// Returns the bytes of the payload of the frame that begins with `header` (12 bytes, or fewer at the end of a file).
// `left`: the bytes of the file from there on. Throws DataError that names `where`.
[[nodiscard]] inline std::uint64_t payload_length(std::span<const std::uint8_t> header, std::uint64_t left,
                                                  std::string_view where) {
  if (header.size() >= 2 && header[0] == 0x1F && header[1] == 0x8B)
    fail<DataError>(where, "a TFRecord file that is not compressed", "a gzip stream", "unpack it with gunzip");
  if (header.size() < header_bytes)
    fail<DataError>(where, "a record's header of 12 bytes", header.size(), "the file is truncated");
  const std::uint32_t crc = io::mask_crc32c(io::crc32c(std::as_bytes(header.first(8))));
  if (crc != little_endian_32(header.data() + 8))
    fail<DataError>(where, "a length with its CRC", "another CRC", "the file is damaged, or is not a TFRecord file");
  const std::uint64_t length = little_endian_64(header.data());
  if (length > most_record_bytes) fail<DataError>(where, {"a record of at most ", most_record_bytes, " bytes"}, length);
  if (left < header_bytes + length + footer_bytes)
    fail<DataError>(where, {"a record of ", length, " bytes"},
                    {left < header_bytes ? 0 : left - header_bytes, " bytes with its CRC"}, "the file is truncated");
  return length;
}

// Returns the payload of a complete frame after checking its CRC. Throws DataError that names `where`.
[[nodiscard]] inline std::span<const std::uint8_t> payload(std::span<const std::uint8_t> frame,
                                                           std::string_view where) {
  const auto length = static_cast<std::size_t>(
      payload_length(frame.first(std::min<std::size_t>(frame.size(), header_bytes)), frame.size(), where));
  if (frame.size() != header_bytes + length + footer_bytes)
    fail<DataError>(where, {"a frame of ", header_bytes + length + footer_bytes, " bytes"}, frame.size(),
                    "the file has changed since its index was made");
  const auto data = frame.subspan(header_bytes, length);
  if (io::mask_crc32c(io::crc32c(std::as_bytes(data))) != little_endian_32(frame.data() + header_bytes + length))
    fail<DataError>(where, "a payload with its CRC", "another CRC", "the record is damaged");
  return data;
}

// Returns the frames of one file, reading only their headers. Throws DataError that names file and record.
[[nodiscard]] inline std::vector<RecordSpan> scan(const ShardFiles& files, std::size_t file) {
  std::vector<RecordSpan> found;
  HeaderReader reader(files, file);
  const std::uint64_t bytes = files.bytes(file);
  for (std::uint64_t at = 0; at < bytes;) {
    const std::string where =
        files.path(file).string() + " record " + std::to_string(found.size()) + " at byte " + std::to_string(at);
    const std::uint64_t length =
        payload_length(reader.at(at, header_bytes), bytes - at, where) + header_bytes + footer_bytes;
    found.push_back({at, static_cast<std::uint32_t>(length)});
    at += length;
  }
  return found;
}

}  // namespace tfrecord

// The records of a set of TFRecord files, in the order of the files. Copies share it; all calls are const and safe from
// several threads at once.
class TfRecordFiles {
 public:
  // `index`: the path of the index file, if the folder is writable. Throws DataError.
  TfRecordFiles(std::vector<io::Path> paths, const io::Path& index) : TfRecordFiles(open(std::move(paths), index)) {}

  [[nodiscard]] std::int64_t size() const noexcept { return shared_->index.size(); }
  // Reads record i into `frame` and returns its payload, which is part of `frame`'s memory. Throws DataError.
  [[nodiscard]] std::span<const std::uint8_t> read(std::int64_t i, std::vector<std::uint8_t>& frame) const {
    const RecordSpan span = shared_->index.span(i);
    frame.resize(span.length);
    const auto place = shared_->index.place(i);
    try {
      shared_->files.read(place.file, span.offset, frame);
      return tfrecord::payload(frame, "frame");
    } catch (const io::FileError&) {
      throw;
    } catch (const DataError& e) {
      throw DataError(where(i) + ": " + e.what());
    }
  }
  [[nodiscard]] std::string where(std::int64_t i) const {
    const auto place = shared_->index.place(i);
    return shared_->files.path(place.file).string() + " record " + std::to_string(place.record);
  }
  [[nodiscard]] const RecordIndex& index() const noexcept { return shared_->index; }

 private:
  struct Shared {
    ShardFiles files;
    RecordIndex index;
    Shared(std::vector<io::Path> paths, const io::Path& path)
        : files(std::move(paths)),
          index(RecordIndex::open(files, RecordIndex::Kind::tfrecord, path,
                                  [this](std::size_t f) { return tfrecord::scan(files, f); })) {}
  };
  explicit TfRecordFiles(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}
  [[nodiscard]] static std::shared_ptr<const Shared> open(std::vector<io::Path> paths, const io::Path& index) {
    return std::make_shared<const Shared>(std::move(paths), index);
  }
  std::shared_ptr<const Shared> shared_;
};

}  // namespace tutti
