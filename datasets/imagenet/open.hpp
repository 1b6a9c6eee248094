// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/data/images/image_folder.hpp>
#include <tutti/data/records/packed_shard.hpp>
#include <tutti/data/records/recordio_reader.hpp>
#include <tutti/data/records/records.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/datasets/imagenet/recordio.hpp>
#include <tutti/datasets/imagenet/set_facts.hpp>
#include <tutti/datasets/imagenet/tfrecords.hpp>
#include <tutti/io/file.hpp>

// Opens ImageNet, or another set of images, in any of its four forms.
namespace tutti {

namespace imagenet {

inline constexpr std::string_view prepare_hint =
    "datasets/imagenet/prepare --help explains how to get ImageNet and convert it to a form that loads fast";

enum class Form { packed, tfrecord, recordio, image_folder };   // a form of an image set on disk
[[nodiscard]] constexpr const char* name_of(Form f) noexcept {  // the name in messages
  switch (f) {
    case Form::packed:
      return "packed shards";
    case Form::tfrecord:
      return "TFRecord";
    case Form::recordio:
      return "RecordIO";
    default:
      return "image folder";
  }
}

struct OpenOptions {           // options of open_imagenet()
  std::optional<Form> form{};  // only this form; default: the first that exists, in the order of Form
  // Number of classes in TFRecord and RecordIO files, which do not store it. 0: takes it from tutti-data-*.json next to
  // them, or 1000 if there is no such file.
  int classes = 0;
  // Accepts a TFRecord set with missing files.
  bool missing_shards = false;
};

struct Opened {  // a split that was found
  AnyRecords records;
  int classes = 0;
  Form form = Form::packed;
  io::Path folder;                       // the folder that holds it
  std::vector<std::string> class_names;  // one per class, or empty
  image_folder::LeftOut left_out{};      // image folders only: files that are not images
  std::string missing{};                 // the names of missing files, if any
};

namespace detail {

[[nodiscard]] inline bool is_folder(const io::Path& p) {
  std::error_code ignored;
  return std::filesystem::is_directory(p, ignored);
}

// Returns the absolute path without "." and ".." and without a slash at its end.
[[nodiscard]] inline io::Path full_path(const io::Path& folder) {
  return (std::filesystem::absolute(folder) / "").lexically_normal().parent_path();
}

// Returns true if the name of the folder means that it holds this split only.
[[nodiscard]] inline bool is_named(const io::Path& folder, Split split) {
  const auto words = words_of(split);
  return std::find(words.begin(), words.end(), full_path(folder).filename().string()) != words.end();
}

// Returns the folders to search: the folder itself, its subfolders for the split, and, if its own name is that of a
// split, the same for its parent.
[[nodiscard]] inline std::vector<io::Path> places(const io::Path& folder, Split split) {
  std::vector<io::Path> out{folder};
  for (const auto w : words_of(split)) out.push_back(folder / w);
  if (is_named(folder, Split::train) || is_named(folder, Split::test)) {
    const io::Path parent = full_path(folder).parent_path();
    out.push_back(parent);
    for (const auto w : words_of(split)) out.push_back(parent / w);
  }
  return out;
}

// Returns true if there are class folders. The folder of a split is not a class folder.
[[nodiscard]] inline bool has_class_folders(const io::Path& place) {
  if (!is_folder(place)) return false;
  const auto names = image_folder::folders_in(place);
  for (const Split s : {Split::train, Split::test})
    for (const auto w : words_of(s))
      if (std::find(names.begin(), names.end(), w) != names.end()) return false;
  return !names.empty();
}

// Returns true if the folder itself has an image; subfolders do not count.
[[nodiscard]] inline bool has_image(const io::Path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (image_folder::is_image_name(it->path().filename().string())) return true;
  return false;
}

// Returns the classes of the training images next to a folder of other images: labels must have the same meaning.
[[nodiscard]] inline std::vector<std::string> training_classes(const io::Path& place) {
  const io::Path train = full_path(place).parent_path() / "train";
  return has_class_folders(train) ? image_folder::folders_in(train) : std::vector<std::string>{};
}

[[nodiscard]] inline std::optional<Opened> open_image_folder(const io::Path& place, Split split, bool is_asked_for) {
  // A folder of any name may hold training images. For evaluation, its name must be that of the split.
  const bool fits = split == Split::train ? !is_named(place, Split::test) : is_named(place, Split::test);
  if (!fits || !is_folder(place)) return std::nullopt;
  const auto opened = [&](const ImageFolder& f) {
    return Opened{AnyRecords(f), f.classes(), Form::image_folder, place, f.class_names(), f.left_out()};
  };
  if (has_class_folders(place)) {
    // Any folder may have subfolders; class folders have images.
    bool any = is_named(place, split) || is_asked_for;
    for (const auto& name : image_folder::folders_in(place)) any = any || has_image(place / name);
    if (!any) return std::nullopt;
    return opened(ImageFolder(place, split == Split::train ? std::vector<std::string>{} : training_classes(place)));
  }
  const io::Path labels = full_path(place).parent_path() / "synset_labels.txt";
  if (split == Split::test && is_file(labels) && has_image(place))
    return opened(ImageFolder::flat(place, labels, training_classes(place)));
  return std::nullopt;
}

// Returns the number of classes and their names for a set of files that do not store them.
[[nodiscard]] inline SetFacts facts_of(const io::Path& place, Split split, Form form, int asked) {
  SetFacts facts;
  // Both splits have the same classes.
  for (const Split s : {split, split == Split::train ? Split::test : Split::train}) {
    auto told = read_set_facts(place, s);
    if (!told || told->form != (form == Form::tfrecord ? "tfrecord" : "recordio")) continue;
    facts = std::move(*told);
    break;
  }
  const int classes = asked > 0 ? asked : facts.classes > 0 ? facts.classes : 1000;
  if (classes != facts.classes) facts.class_names.clear();
  facts.classes = classes;
  return facts;
}

[[nodiscard]] inline std::optional<Opened> open_form(Form form, const io::Path& place, Split split,
                                                     const OpenOptions& o) {
  if (form == Form::image_folder) return open_image_folder(place, split, o.form.has_value());
  if (form == Form::recordio) {
    const auto paths = find_recordio(place, split);
    if (paths.empty()) return std::nullopt;
    const SetFacts facts = facts_of(place, split, form, o.classes);
    RecordIoFiles r(paths, place / (std::string(tutti::name_of(split)) + "-rec.tutti-index"), facts.classes);
    return Opened{AnyRecords(r, facts.class_names), facts.classes, form, place, facts.class_names};
  }
  for (const auto word : words_of(split)) {
    std::string missing;
    const bool may_lack = o.missing_shards && form == Form::tfrecord;
    const auto paths = find_shards(place, word, form == Form::packed ? ".tutti" : "", may_lack ? &missing : nullptr);
    if (paths.empty()) continue;
    if (form == Form::packed) {
      PackedShards p(paths);
      return Opened{AnyRecords(p), p.classes(), form, place, p.class_names()};
    }
    const SetFacts facts = facts_of(place, split, form, o.classes);
    TfRecords t(paths, place / (std::string(word) + ".tutti-index"), facts.classes);
    return Opened{AnyRecords(t, facts.class_names), facts.classes, form, place, facts.class_names, {}, missing};
  }
  return std::nullopt;
}

}  // namespace detail

}  // namespace imagenet

// Finds the form of the data in `folder` and opens the split. Searches the folder, its subfolder for the split, and its
// parent if `folder` is the folder of a split. Returns no value if no form is found. Throws DataError if the data is
// damaged.
[[nodiscard]] inline std::optional<imagenet::Opened> find_imagenet(const io::Path& folder, Split split,
                                                                   const imagenet::OpenOptions& options = {}) {
  using imagenet::Form;
  if (options.classes < 0 || options.classes > (1 << 24))
    fail<UsageError>("imagenet", "0 to 2^24 classes", options.classes);
  const auto places = imagenet::detail::places(folder, split);
  for (const Form form : {Form::packed, Form::tfrecord, Form::recordio, Form::image_folder}) {
    if (options.form && form != *options.form) continue;
    for (const auto& place : places)
      if (auto opened = imagenet::detail::open_form(form, place, split, options)) return opened;
  }
  return std::nullopt;
}

// Like find_imagenet, but throws DataError if no data is found. The message lists what was searched for and what
// exists.
[[nodiscard]] inline imagenet::Opened open_imagenet(const io::Path& folder, Split split,
                                                    const imagenet::OpenOptions& options = {}) {
  if (auto opened = find_imagenet(folder, split, options)) return std::move(*opened);
  const std::string word(imagenet::words_of(split)[0]);
  const std::string looked = options.form ? std::string(imagenet::name_of(*options.form)) + " of the split " + word
                                          : word + "-*-of-*.tutti (packed shards), " + word + "-*-of-* (TFRecord), " +
                                                word + ".rec (RecordIO) or " + word + "/<class>/*.JPEG (image folder)";
  fail<DataError>("imagenet", {looked, " in or below ", folder.native()}, contents_of(folder), imagenet::prepare_hint);
}

}  // namespace tutti
