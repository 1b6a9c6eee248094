// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/images/image_augment_options.hpp>
#include <tutti/data/images/image_header.hpp>

namespace tutti {

// A rectangle of whole pixels.
struct ImageRegion {
  int x = 0, y = 0, width = 0, height = 0;
};

struct DecodeRequest {  // The part of an image to decode.
  ImageRegion region;
  int wanted_width = 0, wanted_height = 0;  // the size that the region is scaled to afterwards; 0: its own size
  DecodeQuality quality = DecodeQuality::fast;
};

// RGB pixels, [height, width, 3] of u8 without gaps, that hold the requested region and often a margin. Pixel (0, 0)
// covers `reduction` pixels of the source in each direction, starting at (x, y). The buffer grows and is reused.
struct DecodedImage {
  std::vector<std::uint8_t> pixels;
  int x = 0, y = 0, width = 0, height = 0, reduction = 1;

  // Makes room for this size; does not clear the pixels.
  void set_size(int w, int h) {
    width = w;
    height = h;
    const std::size_t bytes = static_cast<std::size_t>(w) * static_cast<std::size_t>(h) * 3;
    if (pixels.size() < bytes) pixels.resize(bytes);
  }
  [[nodiscard]] std::uint8_t* row(int r) noexcept {
    return pixels.data() + static_cast<std::size_t>(r) * static_cast<std::size_t>(width) * 3;
  }
  [[nodiscard]] const std::uint8_t* row(int r) const noexcept { return const_cast<DecodedImage*>(this)->row(r); }
};

// Returns the largest of 1, 2, 4, 8 that makes the region no smaller than the requested size.
[[nodiscard]] inline int reduction_of(const DecodeRequest& r) noexcept {
  if (r.quality == DecodeQuality::accurate || r.wanted_width <= 0 || r.wanted_height <= 0) return 1;
  int d = 1;
  while (d < 8 && r.region.width / (2 * d) >= r.wanted_width && r.region.height / (2 * d) >= r.wanted_height) d *= 2;
  return d;
}

// Decodes one or more formats; backends/turbojpeg and backends/stb have one each. Const calls are safe from several
// threads at once.
class ImageDecoder {
 public:
  ImageDecoder() = default;
  ImageDecoder(const ImageDecoder&) = default;
  ImageDecoder& operator=(const ImageDecoder&) = default;
  virtual ~ImageDecoder() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual bool reads(ImageFormat format) const noexcept = 0;
  // Decodes pixels as they are stored: grey and CMYK become RGB, alpha is dropped. `header` is ImageHeader::as_stored()
  // of `bytes`; the region lies within it. Throws DataError with `where` for damaged data. Rows below the region may
  // stay unread.
  virtual void decode(std::span<const std::uint8_t> bytes, const ImageHeader& header, const DecodeRequest& request,
                      std::string_view where, DecodedImage& out) const = 0;
};

// The decoders of a program. Each image goes to the first one that reads its format. Copies share them.
class ImageDecoders {
 public:
  // Throws UsageError if the list is empty.
  explicit ImageDecoders(std::vector<std::shared_ptr<const ImageDecoder>> decoders, ImageLimits limits = {})
      : decoders_(std::move(decoders)), limits_(limits) {
    std::erase(decoders_, nullptr);
    if (decoders_.empty())
      fail<UsageError>("image decoders", "one or more decoders", "no decoder",
                       "install libjpeg-dev or libstb-dev and build again");
  }

  [[nodiscard]] const ImageLimits& limits() const noexcept { return limits_; }
  // Returns e.g. "turbojpeg, stb".
  [[nodiscard]] std::string names() const {
    std::string all;
    for (const auto& d : decoders_) all.append(all.empty() ? "" : ", ").append(d->name());
    return all;
  }

  // See read_image_header; also throws DataError if no decoder reads the format.
  [[nodiscard]] ImageHeader header(std::span<const std::uint8_t> bytes, std::string_view where) const {
    const ImageHeader h = read_image_header(bytes, where, limits_);
    (void)decoder_of(h.format, where);
    return h;
  }

  // Decodes the region and rotates it according to the EXIF orientation of a JPEG. See ImageDecoder::decode. Throws
  // UsageError for a region that is empty or leaves the image.
  void decode(std::span<const std::uint8_t> bytes, const ImageHeader& header, const DecodeRequest& request,
              std::string_view where, DecodedImage& out) const {
    const ImageRegion& r = request.region;
    if (r.x < 0 || r.y < 0 || r.width <= 0 || r.height <= 0 || r.width > header.width - r.x ||
        r.height > header.height - r.y)
      fail<UsageError>(where, {"a region within ", header.width, "x", header.height, " pixels"},
                       {r.width, "x", r.height, " at (", r.x, ", ", r.y, ")"});
    const ImageDecoder& decoder = decoder_of(header.format, where);
    if (header.orientation == 1) return decoder.decode(bytes, header, request, where, out);
    const ImageHeader stored = header.as_stored();
    const ImageTurn turn(header.orientation);
    decoder.decode(bytes, stored, as_stored(request, turn, stored), where, out);
    turn_to_picture(turn, stored, out);
  }

 private:
  // Returns the request in stored pixels.
  [[nodiscard]] static DecodeRequest as_stored(DecodeRequest r, ImageTurn turn, const ImageHeader& stored) noexcept {
    if (turn.transposed) {
      std::swap(r.region.x, r.region.y);
      std::swap(r.region.width, r.region.height);
      std::swap(r.wanted_width, r.wanted_height);
    }
    if (turn.from_right) r.region.x = stored.width - r.region.x - r.region.width;
    if (turn.from_bottom) r.region.y = stored.height - r.region.y - r.region.height;
    return r;
  }

  // Rotates the decoded pixels. (x, y) may become negative: the last reduced pixel of a row covers more than the image.
  static void turn_to_picture(ImageTurn turn, const ImageHeader& stored, DecodedImage& out) {
    thread_local std::vector<std::uint8_t> turned;
    if (turned.size() < out.pixels.size()) turned.resize(out.pixels.size());
    turn_pixels(turn, out.pixels.data(), out.width, out.height, turned.data());
    out.pixels.swap(turned);
    if (turn.from_right) out.x = stored.width - out.x - out.width * out.reduction;
    if (turn.from_bottom) out.y = stored.height - out.y - out.height * out.reduction;
    if (!turn.transposed) return;
    std::swap(out.x, out.y);
    std::swap(out.width, out.height);
  }

  [[nodiscard]] const ImageDecoder& decoder_of(ImageFormat format, std::string_view where) const {
    for (const auto& d : decoders_)
      if (d->reads(format)) return *d;
    fail<DataError>(where, {"a format that ", names(), " can read"}, name_of(format),
                    "install libstb-dev, which reads JPEG and PNG, and build again");
  }

  std::vector<std::shared_ptr<const ImageDecoder>> decoders_;
  ImageLimits limits_;
};

}  // namespace tutti
