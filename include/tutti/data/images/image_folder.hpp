// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/find_files.hpp>
#include <tutti/data/images/image_input.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/io/file.hpp>

// Images in one folder for each class: FOLDER/<class>/*.JPEG.
namespace tutti {

namespace image_folder {

// Returns the end of a file's name from its last dot on, in lower case; empty if there is no dot.
[[nodiscard]] inline std::string extension_of(std::string_view name) {
  const auto dot = name.rfind('.');
  if (dot == std::string_view::npos) return {};
  std::string end(name.substr(dot));
  std::transform(end.begin(), end.end(), end.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return end;
}

// Returns whether the extension is that of a JPEG or PNG file, in upper or lower case. Hidden files do not count.
[[nodiscard]] inline bool is_image_name(std::string_view name) {
  const std::string end = name.starts_with('.') ? "" : extension_of(name);
  return end == ".jpeg" || end == ".jpg" || end == ".png";
}

// The number of files for each extension that are not read, because their names are not names of images; and the
// numbers of links that are not followed, with the next two keys.
using LeftOut = std::map<std::string, std::int64_t>;
inline constexpr std::string_view broken_links = "links whose target is missing", folder_links = "links to folders";

// Returns e.g. "4 files are neither JPEG nor PNG: .gif 2, .webp 1, without extension 1", the most frequent kind first
// and at most eight of them, and "not followed: links to folders 2"; empty if no file is left out.
[[nodiscard]] inline std::string describe(const LeftOut& left_out) {
  std::vector<std::pair<std::string, std::int64_t>> kinds;
  std::string links;
  for (const auto& [kind, count] : left_out) {
    if (kind != broken_links && kind != folder_links) {
      kinds.emplace_back(kind, count);
      continue;
    }
    links += (links.empty() ? "not followed: " : ", ") + kind + " " + std::to_string(count);
  }
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::int64_t files = 0;
  std::string text;
  constexpr std::size_t most = 8;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    files += kinds[i].second;
    if (i >= most) continue;
    text += i == 0 ? ": " : ", ";
    text += kinds[i].first.empty() ? "without extension" : kinds[i].first;
    text += " " + std::to_string(kinds[i].second);
  }
  if (kinds.size() > most) text += " and " + std::to_string(kinds.size() - most) + " other kinds";
  if (files == 0) return links;
  return std::to_string(files) + (files == 1 ? " file is" : " files are") + " neither JPEG nor PNG" + text +
         (links.empty() ? "" : "; ") + links;
}

// Returns the names of the folders in `folder`, without hidden ones, sorted by their bytes. Links to folders count.
// Throws DataError if `folder` cannot be listed. complete: also if it has a link without a target, which may be a
// class.
[[nodiscard]] inline std::vector<std::string> folders_in(const io::Path& folder, bool complete = false) {
  std::vector<std::string> names;
  std::error_code error, ignored;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.starts_with('.')) continue;
    if (complete && it->is_symlink(ignored) && !it->exists(ignored))
      fail<DataError>(
          {"folder ", folder.native()}, "folders of classes",
          {name, ", a link to ", std::filesystem::read_symlink(it->path(), ignored).native(), ", which does not exist"},
          "mount or restore its target, or remove the link");
    if (it->is_directory(ignored)) names.push_back(std::move(name));
  }
  if (error) io::fail_file("list the folder", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the images below `folder`, as paths relative to it, sorted by their bytes. Searches subfolders, but not
// hidden ones, nor links to folders. Adds other files and such links that are not hidden to `left_out`. Throws
// DataError.
[[nodiscard]] inline std::vector<std::string> images_in(const io::Path& folder, LeftOut* left_out = nullptr) {
  std::vector<std::string> names;
  const std::size_t prefix = (folder / "").string().size();
  std::error_code error, ignored;
  std::filesystem::recursive_directory_iterator it(folder, error), end;
  for (; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with('.')) {
      it.disable_recursion_pending();
    } else if (is_image_name(name) && it->is_regular_file(ignored)) {
      names.push_back(it->path().string().substr(prefix));
    } else if (left_out != nullptr && it->is_regular_file(ignored)) {
      ++(*left_out)[extension_of(name)];
    } else if (left_out != nullptr && it->is_symlink(ignored)) {
      if (it->is_directory(ignored))
        ++(*left_out)[std::string(folder_links)];
      else if (!it->exists(ignored))
        ++(*left_out)[std::string(broken_links)];
    }
  }
  if (error) io::fail_file("list the folder", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

// Reads the bytes of an image's file. Throws DataError.
inline void read_image_file(const io::Path& file, std::vector<std::uint8_t>& bytes) {
  struct stat status {};
  const io::Descriptor fd = io::detail::open_regular(file, status);
  io::detail::check_size(file, static_cast<std::uint64_t>(status.st_size), most_record_bytes);
  if (status.st_size == 0) fail<DataError>({"file ", file.native()}, "an encoded image", "0 bytes");
  bytes.resize(static_cast<std::size_t>(status.st_size));
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::read(fd.get(), bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io::fail_file("read", file, errno);
    if (n == 0)
      fail<DataError>({"file ", file.native()}, {bytes.size(), " bytes"}, at,
                      "the file was truncated while it was read");
    at += static_cast<std::size_t>(n);
  }
}

}  // namespace image_folder

// A folder of class folders as Records: label k is the k-th class, by sorted folder names. The names are stored one
// after the other in one block of memory: about 40 bytes for each image. Copies share them. fit(job, net, ...) and
// Images take a folder as it is: `input` says what the net sees of an image.
class ImageFolder {
 public:
  // Throws DataError if the folder has no class folders, or if a class folder (which it names) has no images. With
  // `classes` (e.g. those of the training images), a sorted list, labels are positions in it, and a class folder that
  // is not in it is an error.
  explicit ImageFolder(const io::Path& folder) : ImageFolder(folder, ImageInput{}) {}
  // A template, so that braces with names of members make an ImageInput, and not a list of classes.
  template <std::same_as<std::vector<std::string>> Names>
  ImageFolder(const io::Path& folder, const Names& classes) : ImageFolder(folder, ImageInput{}, classes) {}
  ImageFolder(const io::Path& folder, std::initializer_list<std::string> classes)
      : ImageFolder(folder, ImageInput{}, classes) {}
  ImageFolder(const io::Path& folder, ImageInput input, const std::vector<std::string>& classes = {})
      : shared_(std::make_shared<Shared>()) {
    shared_->folder = folder;
    shared_->input = std::move(input);
    const auto found = image_folder::folders_in(folder, true);
    if (found.empty())
      fail<DataError>("image folder", {"a folder for each class in ", folder.native()}, contents_of(folder));
    shared_->class_names = classes.empty() ? found : classes;
    const auto& names = shared_->class_names;
    if (!std::is_sorted(names.begin(), names.end()))
      fail<UsageError>("image folder", "a sorted list of classes", "an unsorted list");
    for (const auto& name : found) {
      const auto at = std::lower_bound(names.begin(), names.end(), name);
      if (at == names.end() || *at != name)
        fail<DataError>({"image folder ", folder.native()}, {"folders of the ", names.size(), " known classes"}, name,
                        "there are no training images of this class");
      const auto images = image_folder::images_in(folder / name, &shared_->left_out);
      if (images.empty())
        fail<DataError>("image folder", {"images (.jpeg, .jpg, .png) in the class folder ", (folder / name).native()},
                        contents_of(folder / name), "remove the folder or copy its images again");
      const std::string prefix = name + "/";
      for (const auto& image : images) shared_->add(prefix, image, static_cast<std::int32_t>(at - names.begin()));
    }
    shared_->describe();
  }

  // Returns the images of one folder without class folders, like ImageNet's validation images: line k of the text file
  // `labels` names the class of the k-th image by sorted names. `classes` as above; empty: the names in the file.
  [[nodiscard]] static ImageFolder flat(const io::Path& folder, const io::Path& labels,
                                        const std::vector<std::string>& classes = {}) {
    const std::string text = io::read_text_file(labels, std::size_t{1} << 28);
    std::vector<std::string> lines;
    for (std::string_view rest = text; !rest.empty();) {
      std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      while (line.ends_with('\r') || line.ends_with(' ')) line.remove_suffix(1);
      lines.emplace_back(line);
    }
    ImageFolder set;
    set.shared_->folder = folder;
    set.shared_->class_names = classes.empty() ? lines : classes;
    auto& names = set.shared_->class_names;
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    const auto images = image_folder::images_in(folder, &set.shared_->left_out);
    if (images.empty()) fail<DataError>("image folder", {"images in ", folder.native()}, contents_of(folder));
    if (images.size() != lines.size())
      fail<DataError>(labels.native(), {"a line for each of ", images.size(), " images"}, lines.size(),
                      {"each line must give the class of one image of ", folder.native()});
    for (std::size_t k = 0; k < images.size(); ++k) {
      const auto at = std::lower_bound(names.begin(), names.end(), lines[k]);
      if (lines[k].empty() || at == names.end() || *at != lines[k])
        fail<DataError>({labels.native(), " line ", k + 1}, "the name of a class",
                        {"\"", lines[k].substr(0, 60), "\""});
      set.shared_->add("", images[k], static_cast<std::int32_t>(at - names.begin()));
    }
    set.shared_->describe();
    return set;
  }

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(shared_->labels.size()); }
  [[nodiscard]] const io::Path& folder() const noexcept { return shared_->folder; }
  // input: how these images become the input of a net. schema: the extents, normalisation and classes of a Model.
  [[nodiscard]] const ImageInput& input() const noexcept { return shared_->input; }
  [[nodiscard]] const Schema& schema() const noexcept { return shared_->schema; }
  [[nodiscard]] int classes() const noexcept { return static_cast<int>(shared_->class_names.size()); }
  [[nodiscard]] std::int64_t block() const noexcept { return 1; }
  [[nodiscard]] const std::vector<std::string>& class_names() const noexcept { return shared_->class_names; }
  // Returns the files in the class folders that do not have the names of images, and the links that are not followed.
  [[nodiscard]] const image_folder::LeftOut& left_out() const noexcept { return shared_->left_out; }
  [[nodiscard]] std::int32_t label(std::int64_t i) const { return shared_->labels[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::string where(std::int64_t i) const { return path(i).string(); }
  [[nodiscard]] io::Path path(std::int64_t i) const { return shared_->folder / shared_->name(i); }
  [[nodiscard]] std::int32_t read(std::int64_t i, std::vector<std::uint8_t>& bytes) const {
    image_folder::read_image_file(path(i), bytes);
    return label(i);
  }

 private:
  struct Shared {
    io::Path folder;
    std::vector<std::string> class_names;
    std::string names;                // relative paths, one after the other
    std::vector<std::uint64_t> ends;  // the end of each path
    std::vector<std::int32_t> labels;
    image_folder::LeftOut left_out;
    ImageInput input;
    Schema schema;
    void describe() {
      schema = encoded_schema("image folder " + folder.string(), static_cast<int>(class_names.size()), 1, class_names,
                              input.augment(Split::test));
    }
    void add(std::string_view prefix, std::string_view name, std::int32_t label) {
      if (labels.size() >= most_records)
        fail<DataError>({"image folder ", folder.native()}, "at most 2^32 - 1 images", "more");
      names += prefix;
      names += name;
      ends.push_back(names.size());
      labels.push_back(label);
    }
    [[nodiscard]] std::string name(std::int64_t i) const {
      const auto k = static_cast<std::size_t>(i);
      const std::uint64_t begin = k == 0 ? 0 : ends[k - 1];
      return names.substr(begin, ends[k] - begin);
    }
  };
  ImageFolder() : shared_(std::make_shared<Shared>()) {}
  std::shared_ptr<Shared> shared_;
};

}  // namespace tutti
