// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <stb/stb_image.h>

#include <tutti/core/error.hpp>
#include <tutti/data/image_decoder.hpp>

// JPEG and PNG by stb_image.
namespace tutti {
namespace stb {

// Bytes handed to stb_image piece by piece. It takes zeros for what is behind the end and makes grey pixels of them,
// and this way it is seen to ask for more.
struct Source {
  std::span<const std::uint8_t> left;
  bool ran_dry = false;

  static int read(void* self, char* to, int size) {
    auto& s = *static_cast<Source*>(self);
    const std::size_t n = std::min(s.left.size(), static_cast<std::size_t>(size));
    if (n == 0) s.ran_dry = true;
    if (n > 0) std::memcpy(to, s.left.data(), n);
    s.left = s.left.subspan(n);
    return static_cast<int>(n);
  }
  static void skip(void* self, int n) {
    auto& s = *static_cast<Source*>(self);
    if (n < 0 || static_cast<std::size_t>(n) > s.left.size()) {
      s.ran_dry = true;
      s.left = {};
    } else {
      s.left = s.left.subspan(static_cast<std::size_t>(n));
    }
  }
  static int at_end(void* self) { return static_cast<const Source*>(self)->left.empty() ? 1 : 0; }
};

inline constexpr stbi_io_callbacks callbacks{&Source::read, &Source::skip, &Source::at_end};

struct Free {
  void operator()(std::uint8_t* pixels) const noexcept { stbi_image_free(pixels); }
};

}  // namespace stb

// Always decodes the whole image at its full size and copies the region: stb_image knows no parts. It knows one quality
// too, which is about that of libjpeg's accurate one.
class StbDecoder final : public ImageDecoder {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "stb"; }
  [[nodiscard]] bool reads(ImageFormat) const noexcept override { return true; }
  void decode(std::span<const std::uint8_t> bytes, const ImageHeader& header, const DecodeRequest& request,
              std::string_view where, DecodedImage& out) const override {
    if (header.format == ImageFormat::jpeg && header.components == 4 &&
        (!header.adobe || (header.adobe_transform != 0 && header.adobe_transform != 2)))
      fail<DataError>(where, "a JPEG with 4 components and an Adobe marker", "none",
                      "install libjpeg62-turbo-dev, whose library reads it, and build again");
    int width = 0, height = 0, components = 0;
    const auto damaged = [&](std::string_view expected, std::string_view got) {
      fail<DataError>(where, expected, got, "the record is damaged or truncated");
    };
    stb::Source source{bytes};
    const std::unique_ptr<std::uint8_t, stb::Free> pixels(
        stbi_load_from_callbacks(&stb::callbacks, &source, &width, &height, &components, 3));
    if (source.ran_dry) damaged("a complete image", std::to_string(bytes.size()) + " bytes of one");
    if (pixels == nullptr) {
      const char* reason = stbi_failure_reason();
      damaged("an image that stb_image reads", reason != nullptr ? reason : "an unknown error");
    }
    if (width != header.width || height != header.height) damaged("one size in the image", "two");
    const ImageRegion& r = request.region;
    out.set_size(r.width, r.height);
    out.x = r.x;
    out.y = r.y;
    out.reduction = 1;
    const auto row_bytes = static_cast<std::size_t>(width) * 3;
    for (int row = 0; row < r.height; ++row)
      std::memcpy(out.row(row),
                  pixels.get() + static_cast<std::size_t>(r.y + row) * row_bytes + static_cast<std::size_t>(r.x) * 3,
                  static_cast<std::size_t>(r.width) * 3);
  }
};

}  // namespace tutti
