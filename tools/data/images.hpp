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
[[nodiscard]] ImageSize size_by(const ImageRules& rules, ImageSize is);

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
  void write(std::vector<std::uint8_t>& bytes, const ImageHeader& header, ImageSize to, std::string_view where);

  ImageRules rules_;
  std::unique_ptr<ImageDecoders> decoders_;
  DecodedImage decoded_;
  Resizer resizer_;
  std::vector<std::uint8_t> scaled_, grey_;
};

}  // namespace tutti::data_tool
