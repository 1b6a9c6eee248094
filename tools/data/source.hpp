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

// "train" and "validation", as files and options have it.
[[nodiscard]] inline std::string word_of(Split split) { return split == Split::train ? "train" : "validation"; }

// One image with what is known of it.
struct SourceRecord {
  std::int32_t label = 0;                 // from 0
  std::vector<std::uint8_t> image;        // encoded
  std::string synset, filename;           // empty where the form does not say
  std::vector<std::uint8_t> frame;        // TFRecord: the whole record
  std::span<const std::uint8_t> example;  // TFRecord: the Example, a part of it
  ImageSize size;
  bool changed = false;  // the image is not the source's any more
};

// The files that hold a split in `place`, in the set's order; empty for an image folder. Throws DataError.
[[nodiscard]] std::vector<io::Path> files_of(Form form, const io::Path& place, Split split);

// A split in any of the forms, with names of classes and files where the form has them. Copies share it.
class Source {
 public:
  // `classes` counts for TFRecord and RecordIO; 0: what the set's manifest says, else 1000. Throws DataError.
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

  // Safe from several threads at once. Throws DataError naming file and record.
  void read(std::int64_t i, SourceRecord& to) const;

  // The record that each file begins with, and how many there are. TFRecord only.
  [[nodiscard]] std::vector<std::int64_t> file_begins() const;

  // Tells one input from another by names and lengths of its files, names of its classes, and order.
  [[nodiscard]] std::string fingerprint() const;

 private:
  [[nodiscard]] static imagenet::Opened open(const io::Path& folder, Split split, std::optional<Form> form,
                                             int classes);

  // The synsets of TFRecord files as names of the classes, if some tens of records a class tell all of them.
  void learn_names();

  imagenet::Opened opened_;
  Split split_;
  std::vector<io::Path> files_;
  std::shared_ptr<const TfRecordFiles> examples_;
};

}  // namespace tutti::data_tool
