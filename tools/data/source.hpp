// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/data/records/tfrecord_reader.hpp>
#include <tutti/datasets/imagenet/open.hpp>
#include <tutti/io/crc32c.hpp>
#include <tutti/io/file.hpp>

#include "manifest.hpp"

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
[[nodiscard]] inline std::vector<io::Path> files_of(Form form, const io::Path& place, Split split) {
  if (form == Form::recordio) return imagenet::find_recordio(place, split);
  if (form != Form::image_folder)
    for (const auto word : imagenet::words_of(split))
      if (auto paths = find_shards(place, word, form == Form::packed ? ".tutti" : ""); !paths.empty()) return paths;
  return {};
}

// A split in any of the forms, with names of classes and files where the form has them. Copies share it.
class Source {
 public:
  // `classes` counts for TFRecord and RecordIO; 0: what the set's manifest says, else 1000. Throws DataError.
  Source(const io::Path& folder, Split split, std::optional<Form> form, int classes)
      : opened_(open(folder, split, form, classes)), split_(split) {
    files_ = files_of(opened_.form, opened_.folder, split);
    if (opened_.form == Form::tfrecord) {
      const std::string name = files_.front().filename().string();
      const auto index = opened_.folder / (name.substr(0, name.find('-')) + ".tutti-index");
      examples_ = std::make_shared<const TfRecordFiles>(files_, index);
    }
    if (opened_.class_names.empty() && opened_.form == Form::tfrecord) learn_names();
  }

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
  void read(std::int64_t i, SourceRecord& to) const {
    to.synset.clear();
    to.filename.clear();
    to.example = {};
    if (examples_) {
      to.example = examples_->read(i, to.frame);
      const auto e = imagenet::parse_image_example(to.example, where(i));
      if (e.label < 1 || e.label > classes())
        fail<DataError>(where(i), "a label of 1 to " + std::to_string(classes()), std::to_string(e.label),
                        "--classes tells how many there are");
      to.label = static_cast<std::int32_t>(e.label - 1);
      to.image.assign(e.encoded.begin(), e.encoded.end());
      to.synset = e.synset;
      to.filename = e.filename;
    } else {
      to.label = opened_.records.read(i, to.image);
      if (opened_.form == Form::image_folder) to.filename = io::Path(where(i)).filename().string();
    }
    if (to.label < 0 || to.label >= classes())
      fail<DataError>(where(i), "a label of 0 to " + std::to_string(classes() - 1), std::to_string(to.label));
    if (to.synset.empty() && !opened_.class_names.empty())
      to.synset = opened_.class_names[static_cast<std::size_t>(to.label)];
  }

  // The record that each file begins with, and how many there are. TFRecord only.
  [[nodiscard]] std::vector<std::int64_t> file_begins() const {
    std::vector<std::int64_t> begins;
    for (std::size_t f = 0; f <= files_.size(); ++f) {
      std::int64_t low = 0, high = size();
      while (low < high) {
        const std::int64_t middle = low + (high - low) / 2;
        if (examples_->index().place(middle).file < f)
          low = middle + 1;
        else
          high = middle;
      }
      begins.push_back(low);
    }
    return begins;
  }

  // Tells one input from another by names and lengths of its files, names of its classes, and order.
  [[nodiscard]] std::string fingerprint() const {
    std::uint32_t crc = io::crc32c(imagenet::name_of(opened_.form));
    const auto add = [&crc](std::string_view text) { crc = io::crc32c("\n", io::crc32c(text, crc)); };
    for (const auto& name : opened_.class_names) add(name);
    for (const auto& f : files_) add(f.filename().string() + " " + std::to_string(size_of_file(f)));
    if (files_.empty()) {
      const std::size_t prefix = (opened_.folder / "").string().size();
      for (std::int64_t i = 0; i < size(); ++i) add(where(i).substr(prefix));
      const auto labels = opened_.folder / ".." / "synset_labels.txt";
      if (split_ == Split::test && is_file(labels)) add(io::read_text_file(labels, std::size_t{1} << 28));
    }
    std::string hex;
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[(crc >> shift) & 15U];
    return hex;
  }

 private:
  [[nodiscard]] static imagenet::Opened open(const io::Path& folder, Split split, std::optional<Form> form,
                                             int classes) {
    imagenet::OpenOptions as;
    as.form = form;
    as.classes = classes;
    return open_imagenet(folder, split, as);
  }

  // The synsets of TFRecord files as names of the classes, if some tens of records a class tell all of them.
  void learn_names() {
    std::vector<std::string> names(static_cast<std::size_t>(opened_.classes));
    std::size_t missing = names.size();
    SourceRecord r;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(size(), 30 * std::int64_t{opened_.classes}) && missing > 0;
         ++i) {
      try {
        read(i, r);
      } catch (const DataError&) {
        return;  // it is reported when its turn comes
      }
      auto& name = names[static_cast<std::size_t>(r.label)];
      if (r.synset.empty() || r.synset.find('\n') != std::string::npos) return;
      if (!name.empty() && name != r.synset) return;
      if (name.empty()) --missing;
      name = r.synset;
    }
    if (missing == 0) opened_.class_names = std::move(names);
  }

  imagenet::Opened opened_;
  Split split_;
  std::vector<io::Path> files_;
  std::shared_ptr<const TfRecordFiles> examples_;
};

}  // namespace tutti::data_tool
