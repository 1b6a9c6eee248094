// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/data/images/image_decoder.hpp>

namespace tutti::stb {

// The largest block that stb_image may allocate in this thread. stb_image has no other limit, and a PNG of some
// kilobytes may expand to gigabytes.
inline std::size_t& largest_block() {
  thread_local std::size_t bytes = 0;
  return bytes;
}
// Returns zeroed memory, because stb_image reads Huffman tables that a damaged JPEG does not set.
inline void* allocate(std::size_t bytes) { return bytes > largest_block() ? nullptr : std::calloc(1, bytes); }
inline void* allocate_again(void* block, std::size_t bytes) {
  return bytes > largest_block() ? nullptr : std::realloc(block, bytes);
}
inline void require(bool ok) {
  if (!ok) fail<Error>("stb_image", "true assertions", "a false one");
}

}  // namespace tutti::stb

// Compiles stb_image here: a linked stb_image would end the program at a failed assertion, and allocate without a
// limit.
#if defined(STBI_INCLUDE_STB_IMAGE_H)
#error "include <tutti/backends/stb/stb.hpp> before <stb/stb_image.h>, because it contains the implementation"
#endif
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#define STBI_MAX_DIMENSIONS 65536
#define STBI_ASSERT(x) ::tutti::stb::require(x)
#define STBI_MALLOC(n) ::tutti::stb::allocate(n)
#define STBI_REALLOC(p, n) ::tutti::stb::allocate_again(p, n)
#define STBI_FREE(p) std::free(p)
// Disables the sanitizer's check of shifts. Before version 2.28, stb_image shifts by 32 and more if a scan ends at a
// marker in the middle of a code. The pixels are then wrong, as in any damaged scan, but no memory is damaged.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((no_sanitize("shift"))), apply_to = function)
#endif
#include <stb/stb_image.h>
#if defined(__clang__)
#pragma clang attribute pop
#endif
#undef STB_IMAGE_IMPLEMENTATION

// Decodes JPEG and PNG with stb_image.
namespace tutti {
namespace stb {

// Passes bytes to stb_image piece by piece, and notices when stb_image requests bytes after the end: it would read
// zeros and make grey pixels of them.
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

// Throws DataError if a Huffman table has more than 256 codes, also between scans, because stb_image would write past
// the end of its table. bytes: a JPEG with a checked header. Walks from marker to marker as stb_image does.
inline void check_huffman_tables(std::span<const std::uint8_t> bytes, std::string_view where) {
  const auto bad = [&] {
    fail<DataError>(where, "valid JPEG Huffman tables", "damaged ones", "the record is damaged");
  };
  for (std::size_t at = 2;;) {
    while (at < bytes.size() && bytes[at] != 0xff) ++at;
    while (at < bytes.size() && bytes[at] == 0xff) ++at;
    if (at >= bytes.size()) return;
    const unsigned marker = bytes[at++];
    if (marker == 0 || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8)) continue;
    if (marker == 0xd9 || bytes.size() - at < 2) return;
    const std::size_t length = static_cast<std::size_t>(bytes[at] << 8 | bytes[at + 1]);
    if (length < 2 || length > bytes.size() - at) return bad();
    if (marker == 0xc4)
      for (auto left = bytes.subspan(at + 2, length - 2); !left.empty();) {
        std::size_t codes = 0;
        for (std::size_t i = 1; i <= 16 && i < left.size(); ++i) codes += left[i];
        if (left.size() < 17 || codes > 256 || codes > left.size() - 17) return bad();
        left = left.subspan(17 + codes);
      }
    at += length;
  }
}

struct Free {  // deletes memory that stb_image has allocated
  void operator()(std::uint8_t* pixels) const noexcept { stbi_image_free(pixels); }
};

}  // namespace stb

// Always decodes the whole image at full size and copies the region, because stb_image cannot decode parts. Its only
// quality is about that of libjpeg's accurate transform.
class StbDecoder final : public ImageDecoder {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "stb"; }
  [[nodiscard]] bool reads(ImageFormat) const noexcept override { return true; }
  void decode(std::span<const std::uint8_t> bytes, const ImageHeader& header, const DecodeRequest& request,
              std::string_view where, DecodedImage& out) const override {
    if (header.format == ImageFormat::jpeg && header.components == 4 &&
        (!header.adobe || (header.adobe_transform != 0 && header.adobe_transform != 2)))
      fail<DataError>(where, "a JPEG with 4 components and an Adobe marker", "none",
                      "install libjpeg-dev, which reads it, and build again");
    if (header.format == ImageFormat::jpeg) stb::check_huffman_tables(bytes, where);
    int width = 0, height = 0, components = 0;
    const auto damaged = [&](std::string_view expected, std::string_view got) {
      fail<DataError>(where, expected, got, "the record is damaged or truncated");
    };
    stb::Source source{bytes};
    // Room for coefficients, planes and rows: up to 16 bytes for each pixel, in whole groups of blocks.
    stb::largest_block() =
        (static_cast<std::size_t>(header.width) + 64) * (static_cast<std::size_t>(header.height) + 64) * 16 +
        (1U << 20);
    const std::unique_ptr<std::uint8_t, stb::Free> pixels(
        stbi_load_from_callbacks(&stb::callbacks, &source, &width, &height, &components, 3));
    if (source.ran_dry) damaged("a complete image", std::to_string(bytes.size()) + " bytes of an image");
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
