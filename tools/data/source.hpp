// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/data/records/tfrecord_reader.hpp>
#include <tutti/datasets/imagenet/open.hpp>

#include "tools/data/images.hpp"

namespace tutti::data_tool {

using imagenet::Form;

// Returns "train" or "validation", as in file names and options.
[[nodiscard]] inline std::string word_of(Split split) { return split == Split::train ? "train" : "validation"; }

// One image and its metadata.
struct SourceRecord {
  std::int32_t label = 0;                 // from 0
  std::vector<std::uint8_t> image;        // encoded
  std::string synset, filename;           // empty if the form does not have them
  std::vector<std::uint8_t> frame;        // TFRecord: the whole record
  std::span<const std::uint8_t> example;  // TFRecord: the Example, a part of `frame`
  ImageSize size;
  bool changed = false;  // the image differs from the source's
};

// Returns the files of a split in `place`, in the set's order, or no files for an image folder. Throws DataError.
[[nodiscard]] std::vector<io::Path> files_of(Form form, const io::Path& place, Split split);

// A split in any form, with names of classes and files if the form has them. Copies share the data.
class Source {
 public:
  // classes: used for TFRecord and RecordIO. 0 means the number in the set's manifest, or 1000 without a manifest.
  // Throws DataError.
  Source(const io::Path& folder, Split split, std::optional<Form> form, int classes);

  [[nodiscard]] std::int64_t size() const { return opened_.records.size(); }
  [[nodiscard]] int classes() const noexcept { return opened_.classes; }
  [[nodiscard]] Form form() const noexcept { return opened_.form; }
  [[nodiscard]] Split split() const noexcept { return split_; }
  [[nodiscard]] const io::Path& folder() const noexcept { return opened_.folder; }
  [[nodiscard]] const std::vector<std::string>& class_names() const noexcept { return opened_.class_names; }
  [[nodiscard]] const std::vector<io::Path>& files() const noexcept { return files_; }
  [[nodiscard]] const image_folder::LeftOut& left_out() const noexcept { return opened_.left_out; }
  [[nodiscard]] std::string where(std::int64_t i) const { return opened_.records.where(i); }

  // Reads record i. May be called from several threads at once. Throws DataError that names file and record.
  void read(std::int64_t i, SourceRecord& to) const;

  // Returns the index of each file's first record, followed by the number of records. TFRecord only.
  [[nodiscard]] std::vector<std::int64_t> file_begins() const;

  // Returns a hash of the names and lengths of the files, the names of the classes, and their order.
  [[nodiscard]] std::string fingerprint() const;

 private:
  [[nodiscard]] static imagenet::Opened open(const io::Path& folder, Split split, std::optional<Form> form,
                                             int classes);

  // Takes the synsets of TFRecord files as class names if, among the first 30 records per class, every class has one.
  void learn_names();

  imagenet::Opened opened_;
  Split split_;
  std::vector<io::Path> files_;
  std::shared_ptr<const TfRecordFiles> examples_;
};

}  // namespace tutti::data_tool
