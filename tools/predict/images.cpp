// SPDX-License-Identifier: MIT
#include "tools/predict/images.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/records/shard_files.hpp>
#include <tutti/io/file_error.hpp>

namespace tutti::predict_tool {

namespace detail {

namespace {

[[nodiscard]] std::vector<std::uint8_t> read_standard_input() {
  std::vector<std::uint8_t> bytes;
  for (std::size_t used = 0;;) {
    bytes.resize(used + (std::size_t{1} << 16));
    const ssize_t n = ::read(STDIN_FILENO, bytes.data() + used, bytes.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io::fail_file("read", "the standard input", errno);
    used += static_cast<std::size_t>(n);
    if (used > most_record_bytes)
      fail<DataError>("standard input", "at most " + std::to_string(most_record_bytes) + " bytes", "more");
    if (n == 0) {
      bytes.resize(used);
      return bytes;
    }
  }
}

// Returns whether the bytes begin as a JPEG or PNG file. No path in UTF-8 begins that way.
[[nodiscard]] bool is_image(std::string_view bytes) {
  return bytes.starts_with("\xff\xd8") || bytes.starts_with("\x89PNG");
}

}  // namespace

}  // namespace detail

namespace detail {

void add(const std::string& name, std::vector<GivenImage>& to) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(name, ignored)) {
    to.push_back({name});
    return;
  }
  try {
    const auto found = image_folder::images_in(name);
    if (found.empty()) fail<DataError>("folder " + name, "images (.jpeg, .jpg, .png)", contents_of(name));
    for (const std::string& one : found) to.push_back({(io::Path(name) / one).string()});
  } catch (const DataError& e) {
    to.push_back({name, e.what()});
  }
}

}  // namespace detail

std::vector<GivenImage> find_images(const std::vector<std::string>& words) {
  std::vector<GivenImage> images;
  for (const std::string& w : words) {
    if (w != "-") {
      detail::add(w, images);
      continue;
    }
    std::vector<std::uint8_t> bytes = detail::read_standard_input();
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (detail::is_image(text)) {
      images.push_back({"-", {}, std::move(bytes)});
      continue;
    }
    const std::size_t before = images.size();
    for (std::string_view rest = text; !rest.empty();) {
      std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) detail::add(std::string(line), images);
    }
    if (images.size() == before)
      images.push_back({"-", error_message("standard input", "an image or a list of files",
                                           text.empty() ? "nothing" : "empty lines")});
  }
  return images;
}

GivenImages::GivenImages(const std::vector<GivenImage>& images, const ImageDecoders& decoders,
                         const interchange::ImagePreparation& preparation, std::int64_t channels)
    : shared_(std::make_shared<Shared>(images)), decoders_(decoders), prepare_(preparation, channels) {
  schema_.name = "the images";
  schema_.channels = channels;
  schema_.height = preparation.height;
  schema_.width = preparation.width;
  schema_.classes = 1;
  schema_.mean.assign(static_cast<std::size_t>(channels), 0.0F);
  schema_.stddev.assign(static_cast<std::size_t>(channels), 1.0F);
  schema_.check();
}

void GivenImages::read(std::int64_t i, Rng&, Sample sample) const {
  thread_local std::vector<std::uint8_t> bytes;
  thread_local interchange::ImagePreparer::Scratch scratch;
  const GivenImage& image = shared_->images[static_cast<std::size_t>(i)];
  sample.label = 0;
  try {
    if (!image.error.empty()) throw DataError(image.error);
    if (image.bytes.empty()) image_folder::read_image_file(image.name, bytes);
    prepare_(decoders_, image.bytes.empty() ? bytes : image.bytes, image.name, scratch, sample.image);
  } catch (const DataError& e) {
    const std::lock_guard lock(shared_->mutex);
    shared_->errors[i] = e.what();
    throw;
  }
}

std::string GivenImages::error(std::int64_t i) const {
  const std::lock_guard lock(shared_->mutex);
  const auto found = shared_->errors.find(i);
  return found != shared_->errors.end() ? found->second : "";
}

}  // namespace tutti::predict_tool
