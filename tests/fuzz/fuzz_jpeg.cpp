// SPDX-License-Identifier: MIT
// Decodes any bytes as an image, with each decoder of the build. The result is either DataError or the requested
// pixels.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/images/image_augment.hpp>
#if defined(TUTTI_HAS_TURBOJPEG)
#include <tutti/backends/turbojpeg/turbojpeg.hpp>
#endif
#if defined(TUTTI_HAS_STB)
#include <tutti/backends/stb/stb.hpp>
#endif

namespace fuzz::jpeg {

using namespace tutti;

// The limits are small, because an image of large extents with little data must not take seconds.
constexpr ImageLimits limits{.width = 4096, .height = 4096, .pixels = 1 << 16};

ImageAugmenter small(ImageAugment a) {
  a.height = a.width = 24;
  a.short_side = 28;
  return ImageAugmenter(a);
}

void decode(const ImageDecoders& decoders, std::span<const std::uint8_t> file) {
  static DecodedImage image;
  static ImageAugmenter::Scratch scratch;
  static const ImageAugmenter augmenters[] = {small(ImageAugment::horovod(Split::train, true)),
                                              small(ImageAugment::torchvision(Split::test))};
  try {
    const ImageHeader h = decoders.header(file, "fuzz");
    if (h.width <= 0 || h.height <= 0 || std::int64_t{h.width} * h.height > limits.pixels) std::abort();
    const ImageRegion region{h.width / 3, h.height / 3, h.width - h.width / 3, (h.height + 2) / 3};
    decoders.decode(file, h, {region, 8, 8, DecodeQuality::fast}, "fuzz", image);
    if (image.x > region.x || image.y > region.y || image.x + image.width * image.reduction < region.x + region.width ||
        image.y + image.height * image.reduction < region.y + region.height)
      std::abort();
    std::vector<std::uint8_t> out(24 * 24 * 3);
    for (const ImageAugmenter& a : augmenters) {
      Rng rng(1, Purpose::augment, 0, file.size());
      a(decoders, file, "fuzz", rng, scratch, out);
    }
  } catch (const DataError&) {
  }
}

int run(const std::uint8_t* data, std::size_t size) {
  const std::span file(data, size);
  try {
    (void)read_image_header(file, "fuzz", limits);
  } catch (const DataError&) {
    return 0;
  }
#if defined(TUTTI_HAS_TURBOJPEG)
  static const ImageDecoders turbojpeg({std::make_shared<TurbojpegDecoder>()}, limits);
  decode(turbojpeg, file);
#endif
#if defined(TUTTI_HAS_STB)
  static const ImageDecoders stb({std::make_shared<StbDecoder>()}, limits);
  decode(stb, file);
#endif
  return 0;
}

}  // namespace fuzz::jpeg
