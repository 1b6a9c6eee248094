// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include <tutti/data/augment_options.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/images/image_augment_options.hpp>

// How an image of any size becomes the input of a net. Data sets have it in their schemas; checkpoints store it.
namespace tutti {

// How an evaluation makes the input of a net from an encoded image of any size: it is decoded and scaled by `scale`.
// For sets of small images that are stored decoded, `window` is then cut out of the result.
struct ImagePreparation {
  ImageAugment scale{};
  // An image of exactly the scaled size is used unchanged, as in a set of images of that size.
  bool stored = false;
  std::int64_t height = 224, width = 224;  // of the net
  Augment window{};                        // only pad, pad_mode and fill are used
};

// Returns the preparation for a set of images that all have this size and are used unchanged. Other images are scaled
// to it, and their centre is cut out.
[[nodiscard]] inline ImagePreparation preparation_of_stored(std::int64_t height, std::int64_t width) {
  ImagePreparation p;
  p.stored = true;
  p.scale.height = p.height = height;
  p.scale.width = p.width = width;
  p.scale.short_side = static_cast<int>(std::max(height, width));
  return p;
}

// Returns the preparation for encoded images: the augmentation without its random parts. A random part of an image
// becomes its centre, at short_side, or at 8/7 of the output if short_side is too small.
[[nodiscard]] inline ImagePreparation preparation_of(ImageAugment a) {
  if (a.crop == CropRule::random) a.crop = CropRule::centre;
  if (a.crop == CropRule::random_nominal) a.crop = CropRule::central;
  const std::int64_t side = std::max(a.height, a.width);
  if (a.short_side < side) a.short_side = static_cast<int>(std::min<std::int64_t>((side * 8 + 6) / 7, 65536));
  a.mirror = false;
  a.quality = DecodeQuality::accurate;
  if (a.interpolation == Interpolation::random) a.interpolation = Interpolation::bicubic;  // as timm evaluates
  a.policy = {};
  a.colour = {};
  a.normalised = {};
  a.erasing = {};
  ImagePreparation p;
  p.height = a.height;
  p.width = a.width;
  p.scale = std::move(a);
  return p;
}

// Returns the preparation for images of `source` if `seen` shows windows of them: the window in the centre, padded if
// it is larger. Returns null if the images of `source` are themselves windows of other images.
[[nodiscard]] inline std::shared_ptr<const ImagePreparation> preparation_of(const Schema& source, const Schema& seen,
                                                                            const Augment& augment) {
  ImagePreparation p =
      source.preparation != nullptr ? *source.preparation : preparation_of_stored(source.height, source.width);
  // These images are already windows.
  if (p.scale.height != source.height || p.scale.width != source.width || p.window.pad > 0) return nullptr;
  p.height = seen.height;
  p.width = seen.width;
  p.window.pad =
      std::max<std::int64_t>({0, (seen.height - source.height + 1) / 2, (seen.width - source.width + 1) / 2});
  p.window.pad_mode = augment.pad_mode;
  p.window.fill = augment.fill;
  return std::make_shared<const ImagePreparation>(std::move(p));
}

}  // namespace tutti
