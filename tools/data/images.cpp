// SPDX-License-Identifier: MIT
#include "tools/data/images.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <tutti/backends/decoders.hpp>
#include <tutti/core/error.hpp>
#if defined(TUTTI_HAS_TURBOJPEG)
#include <tutti/backends/turbojpeg/encode.hpp>
#endif

namespace tutti::data_tool {

ImageSize size_by(const ImageRules& rules, ImageSize is) {
  if (rules.size <= 0) return is;
  if (rules.stretch) return {rules.size, rules.size};
  const int shorter = std::min(is.width, is.height);
  if (shorter <= rules.size) return is;
  const double scale = static_cast<double>(rules.size) / shorter;
  const auto scaled = [&](int side) { return std::max(rules.size, static_cast<int>(std::lround(side * scale))); };
  return {scaled(is.width), scaled(is.height)};
}

void ImageWork::write(std::vector<std::uint8_t>& bytes, const ImageHeader& header, ImageSize to,
                      std::string_view where) {
#if defined(TUTTI_HAS_TURBOJPEG)
  if (!decoders_) decoders_ = std::make_unique<ImageDecoders>(make_image_decoders());
  (void)decoders_->header(bytes, where);  // throws if no decoder is available
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
  fail<UsageError>(where, "a build that can write JPEG, to change this image", "a build without libjpeg-turbo",
                   "install libjpeg-dev and build again");
#endif
}

}  // namespace tutti::data_tool
