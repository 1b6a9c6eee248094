// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/decoders.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/images/image_decoder.hpp>
#include <tutti/data/images/image_header.hpp>
#include <tutti/data/images/resize.hpp>
#if defined(TUTTI_HAS_TURBOJPEG)
#include <tutti/backends/turbojpeg/encode.hpp>
#endif

namespace tutti::data_tool {

// Which images are written anew.
struct ImageRules {
  int size = 0;          // the short side's most pixels; 0: as it is
  bool stretch = false;  // to size x size instead, smaller images too
  int quality = 85;
  bool keep_format = false;  // PNG and CMYK stay what they are
};

struct ImageSize {
  int width = 0, height = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// What the rules make of an image. The aspect is kept up to rounding; nothing gets larger unless it is stretched.
[[nodiscard]] inline ImageSize size_by(const ImageRules& rules, ImageSize is) {
  if (rules.size <= 0) return is;
  if (rules.stretch) return {rules.size, rules.size};
  const int shorter = std::min(is.width, is.height);
  if (shorter <= rules.size) return is;
  const double scale = static_cast<double>(rules.size) / shorter;
  const auto scaled = [&](int side) { return std::max(rules.size, static_cast<int>(std::lround(side * scale))); };
  return {scaled(is.width), scaled(is.height)};
}

// Applies the rules to one image after another. One a thread.
class ImageWork {
 public:
  explicit ImageWork(const ImageRules& rules) : rules_(rules) {}

  struct Result {
    ImageSize size;
    bool changed = false;
  };
  // An image that the rules ask nothing of keeps its bytes. PNG and CMYK become RGB JPEG, unless they are to be kept
  // and need no other size; grey stays grey. Throws DataError naming `where`.
  Result operator()(std::vector<std::uint8_t>& bytes, std::string_view where) {
    const ImageHeader header = read_image_header(bytes, where);
    const ImageSize is{header.width, header.height}, to = size_by(rules_, is);
    const bool foreign = header.format != ImageFormat::jpeg || header.components == 4;
    if (to == is && (!foreign || rules_.keep_format)) return {is, false};
    write(bytes, header, to, where);
    return {to, true};
  }

 private:
  void write(std::vector<std::uint8_t>& bytes, const ImageHeader& header, ImageSize to, std::string_view where) {
#if defined(TUTTI_HAS_TURBOJPEG)
    if (!decoders_) decoders_ = std::make_unique<ImageDecoders>(make_image_decoders());
    (void)decoders_->header(bytes, where);  // is there a decoder for it?
    decoders_->decode(bytes, header, {{0, 0, header.width, header.height}, 0, 0, DecodeQuality::accurate}, where,
                      decoded_);
    PixelView view{decoded_.pixels.data(), header.width, header.height, 3};
    if (to != ImageSize{header.width, header.height}) {
      const ResizeBox box{0, 0, static_cast<double>(header.width), static_cast<double>(header.height)};
      scaled_.resize(static_cast<std::size_t>(to.width) * static_cast<std::size_t>(to.height) * 3);
      resizer_({view.pixels, view.width, view.height}, box, box, to.width, to.height, true, false, scaled_.data());
      view = {scaled_.data(), to.width, to.height, 3};
    }
    if (header.components == 1) {
      const std::size_t pixels = static_cast<std::size_t>(to.width) * static_cast<std::size_t>(to.height);
      grey_.resize(pixels);
      for (std::size_t i = 0; i < pixels; ++i) grey_[i] = view.pixels[3 * i];
      view = {grey_.data(), to.width, to.height, 1};
    }
    encode_jpeg(view, {rules_.quality}, bytes);
#else
    (void)bytes;
    (void)header;
    (void)to;
    fail<UsageError>(where, "a build that writes JPEG, which this image needs", "one without libjpeg-turbo",
                     "install libjpeg-dev and build again");
#endif
  }

  ImageRules rules_;
  std::unique_ptr<ImageDecoders> decoders_;
  DecodedImage decoded_;
  Resizer resizer_;
  std::vector<std::uint8_t> scaled_, grey_;
};

}  // namespace tutti::data_tool
