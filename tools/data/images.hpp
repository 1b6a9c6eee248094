// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <tutti/data/images/image_decoder.hpp>
#include <tutti/data/images/image_header.hpp>
#include <tutti/data/images/resize.hpp>

namespace tutti::data_tool {

// Specifies which images are encoded again, and how.
struct ImageRules {
  int size = 0;          // upper limit of the short side in pixels; 0: no limit
  bool stretch = false;  // resizes to size x size, and enlarges smaller images
  int quality = 85;
  bool keep_format = false;  // does not convert PNG and CMYK
};

struct ImageSize {
  int width = 0, height = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// Returns the size of an image of size `is` after the rules are applied. Keeps the aspect ratio up to rounding.
// Enlarges the image only if `stretch` is set.
[[nodiscard]] ImageSize size_by(const ImageRules& rules, ImageSize is);

// Applies the rules to one image after another. Each thread needs its own object.
class ImageWork {
 public:
  explicit ImageWork(const ImageRules& rules) : rules_(rules) {}

  struct Result {
    ImageSize size;
    bool changed = false;
  };
  // Changes the image in `bytes` if the rules require it, and keeps the bytes otherwise. PNG and CMYK become RGB JPEG,
  // unless `keep_format` is set and the size fits. Grey images stay grey. Throws DataError that names `where`.
  Result operator()(std::vector<std::uint8_t>& bytes, std::string_view where) {
    const ImageHeader header = read_image_header(bytes, where);
    const ImageSize is{header.width, header.height}, to = size_by(rules_, is);
    const bool foreign = header.format != ImageFormat::jpeg || header.components == 4;
    if (to == is && (!foreign || rules_.keep_format)) return {is, false};
    write(bytes, header, to, where);
    return {to, true};
  }

 private:
  void write(std::vector<std::uint8_t>& bytes, const ImageHeader& header, ImageSize to, std::string_view where);

  ImageRules rules_;
  std::unique_ptr<ImageDecoders> decoders_;
  DecodedImage decoded_;
  Resizer resizer_;
  std::vector<std::uint8_t> scaled_, grey_;
};

}  // namespace tutti::data_tool
