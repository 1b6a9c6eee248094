// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/records/example_proto.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/data/records/tfrecord_reader.hpp>
#include <tutti/io/file.hpp>

// Reads ImageNet as TFRecord files train-00000-of-01024 ... and validation-00000-of-00128 ... Each record is a
// tf.train.Example with image/encoded and image/class/label, which counts from 1.
namespace tutti::imagenet {

// The fields of an example in such files. Its texts refer to the bytes that they were read from, or to the bytes to
// write.
struct ImageExample {
  std::int64_t height = 0, width = 0, channels = 3;
  std::string_view colorspace = "RGB", format = "JPEG";
  std::int64_t label = 0;  // from 1
  std::string_view synset, filename;
  std::span<const std::uint8_t> encoded;
};

// Throws DataError with the name `where` if the bytes are not an Example, or have no label or no image.
[[nodiscard]] inline ImageExample parse_image_example(std::span<const std::uint8_t> payload, std::string_view where) {
  ImageExample e;
  std::optional<std::int64_t> label;
  std::optional<std::span<const std::uint8_t>> encoded;
  for_each_feature(payload, where, [&](std::string_view name, const Feature& f) {
    if (name == "image/encoded") encoded = f.first_bytes();
    if (name == "image/class/label") label = f.first_int();
    if (name == "image/height") e.height = f.first_int().value_or(0);
    if (name == "image/width") e.width = f.first_int().value_or(0);
    if (name == "image/channels") e.channels = f.first_int().value_or(0);
    if (name == "image/colorspace") e.colorspace = f.first_text().value_or("");
    if (name == "image/format") e.format = f.first_text().value_or("");
    if (name == "image/class/synset") e.synset = f.first_text().value_or("");
    if (name == "image/filename") e.filename = f.first_text().value_or("");
  });
  if (!label) fail<DataError>(where, "the feature image/class/label, an integer", "none");
  if (!encoded || encoded->empty()) fail<DataError>(where, "the feature image/encoded, a byte string", "none");
  e.label = *label;
  e.encoded = *encoded;
  return e;
}

// Returns the serialized Example for io::append_tfrecord.
[[nodiscard]] inline std::string image_example(const ImageExample& e) {
  ExampleWriter w;
  w.add_int("image/height", e.height);
  w.add_int("image/width", e.width);
  w.add("image/colorspace", e.colorspace);
  w.add_int("image/channels", e.channels);
  w.add_int("image/class/label", e.label);
  w.add("image/class/synset", e.synset);
  w.add("image/format", e.format);
  w.add("image/filename", e.filename);
  w.add("image/encoded", e.encoded);
  return w.payload();
}

// A set of such files as Records. Labels are 1 to `classes` in the files, and 0 to classes - 1 here. Copies share the
// set.
class TfRecords {
 public:
  // `index` is the path of the index file, used if its folder is writable. Throws DataError.
  TfRecords(std::vector<io::Path> paths, const io::Path& index, int classes = 1000)
      : files_(std::move(paths), index), classes_(classes) {}

  [[nodiscard]] std::int64_t size() const noexcept { return files_.size(); }
  [[nodiscard]] int classes() const noexcept { return classes_; }
  [[nodiscard]] std::int64_t block() const noexcept { return records_per_block; }
  [[nodiscard]] std::string where(std::int64_t i) const { return files_.where(i); }
  [[nodiscard]] std::int32_t read(std::int64_t i, std::vector<std::uint8_t>& bytes) const {
    const auto payload = files_.read(i, bytes);
    try {
      const ImageExample e = parse_image_example(payload, "tf.train.Example");
      if (e.label < 1 || e.label > classes_)
        fail<DataError>("image/class/label", {"a label of 1 to ", classes_}, e.label);
      // The image is a part of `bytes`.
      const auto begin = e.encoded.data() - bytes.data();
      const auto count = static_cast<std::ptrdiff_t>(e.encoded.size());
      bytes.erase(bytes.begin() + begin + count, bytes.end());
      bytes.erase(bytes.begin(), bytes.begin() + begin);
      return static_cast<std::int32_t>(e.label - 1);
    } catch (const DataError& e) {
      throw DataError(where(i) + ": " + e.what());
    }
  }
  [[nodiscard]] const RecordIndex& index() const noexcept { return files_.index(); }

 private:
  TfRecordFiles files_;
  int classes_;
};

}  // namespace tutti::imagenet
