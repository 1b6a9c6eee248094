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
#include <tutti/data/image_folder.hpp>
#include <tutti/data/packed_shard.hpp>
#include <tutti/data/recordio_reader.hpp>
#include <tutti/data/records.hpp>
#include <tutti/data/shard_files.hpp>
#include <tutti/datasets/imagenet/recordio.hpp>
#include <tutti/datasets/imagenet/set_facts.hpp>
#include <tutti/datasets/imagenet/tfrecords.hpp>
#include <tutti/io/file.hpp>

// ImageNet, or another set of images in one of its four forms, whichever a folder holds.
namespace tutti {

namespace imagenet {

inline constexpr std::string_view prepare_hint =
    "datasets/imagenet/prepare --help tells where ImageNet comes from and brings it into a form that is read fast";

enum class Form { packed, tfrecord, recordio, image_folder };   // in which an image set may lie
[[nodiscard]] constexpr const char* name_of(Form f) noexcept {  // as messages have it
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

struct OpenOptions {           // what open_imagenet() can be told
  std::optional<Form> form{};  // only this one; otherwise the first there is, in the order of Form
  // Of TFRecord and RecordIO files, which do not tell how many classes there are; 0: what tutti-data-*.json next to
  // them says, else 1000.
  int classes = 0;
  // Takes a TFRecord set of which files are missing.
  bool missing_shards = false;
};

struct Opened {  // a split that was found
  AnyRecords records;
  int classes = 0;
  Form form = Form::packed;
  io::Path folder;                       // where it was found
  std::vector<std::string> class_names;  // one per class, or empty
  image_folder::LeftOut left_out{};      // of an image folder: files that are no images
  std::string missing{};                 // of a set that lacks files: which
};

namespace detail {

[[nodiscard]] inline bool is_folder(const io::Path& p) {
  std::error_code ignored;
  return std::filesystem::is_directory(p, ignored);
}

// The absolute path without "." and ".." and without a slash at its end.
[[nodiscard]] inline io::Path full_path(const io::Path& folder) {
  return (std::filesystem::absolute(folder) / "").lexically_normal().parent_path();
}

// Does the folder's name say that it holds this split alone?
[[nodiscard]] inline bool is_named(const io::Path& folder, Split split) {
  const auto words = words_of(split);
  return std::find(words.begin(), words.end(), full_path(folder).filename().string()) != words.end();
}

// The folder itself, its subfolders for the split, and the same of its parent if its own name is a split's.
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

// Class folders: no folder of a split is one.
[[nodiscard]] inline bool has_class_folders(const io::Path& place) {
  if (!is_folder(place)) return false;
  const auto names = image_folder::folders_in(place);
  for (const Split s : {Split::train, Split::test})
    for (const auto w : words_of(s))
      if (std::find(names.begin(), names.end(), w) != names.end()) return false;
  return !names.empty();
}

// Directly, not in a subfolder.
[[nodiscard]] inline bool has_image(const io::Path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (image_folder::is_image_name(it->path().filename().string())) return true;
  return false;
}

// Classes of the training images beside a folder of other images: labels must mean the same.
[[nodiscard]] inline std::vector<std::string> training_classes(const io::Path& place) {
  const io::Path train = full_path(place).parent_path() / "train";
  return has_class_folders(train) ? image_folder::folders_in(train) : std::vector<std::string>{};
}

[[nodiscard]] inline std::optional<Opened> open_image_folder(const io::Path& place, Split split, bool is_asked_for) {
  // A folder of any name may hold training images; to evaluate on them takes a name that says so.
  const bool fits = split == Split::train ? !is_named(place, Split::test) : is_named(place, Split::test);
  if (!fits || !is_folder(place)) return std::nullopt;
  const auto opened = [&](const ImageFolder& f) {
    return Opened{AnyRecords(f), f.classes(), Form::image_folder, place, f.class_names(), f.left_out()};
  };
  if (has_class_folders(place)) {
    // Any folder may have folders in it; class folders have images.
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

// The classes of a set of files that do not tell them, and their names.
[[nodiscard]] inline SetFacts facts_of(const io::Path& place, Split split, Form form, int asked) {
  SetFacts facts;
  // The classes of both splits are the same.
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

// Finds out which form `folder` holds (itself, in its subfolder for the split, or in its parent where `folder` is the
// one of a split) and opens the split. Nothing where there is none in any form; throws DataError where one is there and
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

// The same, but there must be one: DataError says what was looked for and what is there.
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
