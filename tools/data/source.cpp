// SPDX-License-Identifier: MIT
#include "tools/data/source.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/io/crc32c.hpp>
#include <tutti/io/file.hpp>

namespace tutti::data_tool {

std::vector<io::Path> files_of(Form form, const io::Path& place, Split split) {
  if (form == Form::recordio) return imagenet::find_recordio(place, split);
  if (form != Form::image_folder)
    for (const auto word : imagenet::words_of(split))
      if (auto paths = find_shards(place, word, form == Form::packed ? ".tutti" : ""); !paths.empty()) return paths;
  return {};
}

Source::Source(const io::Path& folder, Split split, std::optional<Form> form, int classes)
    : opened_(open(folder, split, form, classes)), split_(split) {
  files_ = files_of(opened_.form, opened_.folder, split);
  if (opened_.form == Form::tfrecord) {
    const std::string name = files_.front().filename().string();
    const auto index = opened_.folder / (name.substr(0, name.find('-')) + ".tutti-index");
    examples_ = std::make_shared<const TfRecordFiles>(files_, index);
  }
  if (opened_.class_names.empty() && opened_.form == Form::tfrecord) learn_names();
}

void Source::read(std::int64_t i, SourceRecord& to) const {
  to.synset.clear();
  to.filename.clear();
  to.example = {};
  if (examples_) {
    to.example = examples_->read(i, to.frame);
    const auto e = imagenet::parse_image_example(to.example, where(i));
    if (e.label < 1 || e.label > classes())
      fail<DataError>(where(i), "a label of 1 to " + std::to_string(classes()), std::to_string(e.label),
                      "--classes sets the number of classes");
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

std::vector<std::int64_t> Source::file_begins() const {
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

std::string Source::fingerprint() const {
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

imagenet::Opened Source::open(const io::Path& folder, Split split, std::optional<Form> form, int classes) {
  imagenet::OpenOptions as;
  as.form = form;
  as.classes = classes;
  return open_imagenet(folder, split, as);
}

void Source::learn_names() {
  std::vector<std::string> names(static_cast<std::size_t>(opened_.classes));
  std::size_t missing = names.size();
  SourceRecord r;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(size(), 30 * std::int64_t{opened_.classes}) && missing > 0; ++i) {
    try {
      read(i, r);
    } catch (const DataError&) {
      return;  // a later read reports the error
    }
    auto& name = names[static_cast<std::size_t>(r.label)];
    if (r.synset.empty() || r.synset.find('\n') != std::string::npos) return;
    if (!name.empty() && name != r.synset) return;
    if (name.empty()) --missing;
    name = r.synset;
  }
  if (missing == 0) opened_.class_names = std::move(names);
}

}  // namespace tutti::data_tool
