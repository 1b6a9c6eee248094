// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/augment.hpp>
#include <tutti/data/images/image_augment.hpp>
#include <tutti/data/images/image_decoder.hpp>
#include <tutti/data/images/image_preparation.hpp>
#include <tutti/interchange/preparation_json.hpp>
#include <tutti/io/json/json.hpp>

namespace tutti::interchange {

// Each thread stores a scaled image, so the size of scaled images is limited.
inline constexpr std::int64_t most_scaled_pixels = std::int64_t{1} << 26;

// Reads an ImagePreparation. Throws DataError that says what is wrong. `where` names the source of the JSON.
[[nodiscard]] inline ImagePreparation image_preparation_of(const io::Json& json, const std::string& where) {
  ImagePreparation p;
  const auto number = [&](const io::Json& v, std::int64_t least) {
    const std::int64_t n = v.as_integer(where);
    if (n < least || n > 65536) fail<DataError>(where, {least, " to 65536 pixels"}, n);
    return n;
  };
  const auto word = [&](const char* key, std::string_view one, std::string_view other) {
    const std::string& w = json.at(key, where).as_string(where);
    if (w != one && w != other) fail<DataError>({where, " ", key}, {one, " or ", other}, {"'", printable(w), "'"});
    return w == one;
  };
  p.height = number(json.at("height", where), 1);
  p.width = number(json.at("width", where), 1);
  const auto& scaled = json.at("scaled", where).as_array(where);
  if (scaled.size() != 2) fail<DataError>({where, " scaled"}, "a height and a width", scaled.size());
  p.scale.height = number(scaled[0], 1);
  p.scale.width = number(scaled[1], 1);
  if (p.scale.height * p.scale.width > most_scaled_pixels)
    fail<DataError>({where, " scaled"}, "at most 2^26 pixels", {p.scale.height, "x", p.scale.width});
  p.scale.crop = word("crop", "central", "centre") ? CropRule::central : CropRule::centre;
  p.scale.short_side = static_cast<int>(number(json.at("short_side", where), 1));
  p.scale.share = json.at("share", where).as_double(where);
  p.scale.antialias = json.at("antialias", where).as_bool(where);
  if (json.find("interpolation") != nullptr)
    p.scale.interpolation =
        word("interpolation", "bicubic", "bilinear") ? Interpolation::bicubic : Interpolation::bilinear;
  p.scale.quality = json.at("fast", where).as_bool(where) ? DecodeQuality::fast : DecodeQuality::accurate;
  p.stored = json.at("stored", where).as_bool(where);
  p.window.pad = number(json.at("pad", where), 0);
  p.window.pad_mode = word("pad_mode", "reflect", "constant") ? PadMode::reflect : PadMode::constant;
  for (const io::Json& f : json.at("fill", where).as_array(where)) {
    const std::int64_t v = f.as_integer(where);
    if (v < 0 || v > 255) fail<DataError>({where, " fill"}, "values of 0 to 255", v);
    p.window.fill.push_back(static_cast<std::uint8_t>(v));
  }
  return p;
}

// An ImagePreparation that has been checked. Immutable, so threads may share it.
class ImagePreparer {
 public:
  // channels: the number of channels of the net, 3 or 1. Throws UsageError for impossible values.
  ImagePreparer(const ImagePreparation& p, std::int64_t channels)
      : p_(p), channels_(channels), scale_(p.scale), window_(window_of(p), scaled(p, channels)) {
    if (channels != 3 && channels != 1)
      fail<UsageError>("image preparation", "a net for colour or grey images", {channels, " channels"});
  }

  // Memory that a thread reuses for each image.
  struct Scratch {
    ImageAugmenter::Scratch scale;
    std::vector<std::uint8_t> pixels;
  };

  // Decodes an image and writes [height, width, channels] of u8 to `out`. Throws DataError, which names `where`, if the
  // image is damaged.
  void operator()(const ImageDecoders& decoders, std::span<const std::uint8_t> bytes, std::string_view where,
                  Scratch& scratch, std::span<std::uint8_t> out) const {
    Rng none(0, Purpose::user);
    const bool direct = channels_ == 3 && !cuts();
    const auto pixels = static_cast<std::size_t>(p_.scale.height * p_.scale.width);
    scratch.pixels.resize(direct ? 0 : 3 * pixels);
    const std::span<std::uint8_t> scaled = direct ? out : std::span(scratch.pixels);
    if (const ImageHeader h = decoders.header(bytes, where);
        p_.stored && h.width == p_.scale.width && h.height == p_.scale.height)
      as_it_is(decoders, bytes, h, where, scratch.scale.image, scaled);
    else
      scale_(decoders, bytes, where, none, scratch.scale, scaled);
    if (channels_ == 1)  // ITU-R 601's luma, which keeps grey values
      for (std::size_t i = 0; i < pixels; ++i) {
        const std::uint8_t* const rgb = scaled.data() + 3 * i;
        scaled[i] = static_cast<std::uint8_t>((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] + 500) / 1000);
      }
    if (cuts())
      window_(scaled.data(), PixelLayout::hwc, none, out.data());
    else if (!direct)
      std::copy_n(scaled.begin(), out.size(), out.begin());
  }

 private:
  [[nodiscard]] bool cuts() const {
    return p_.window.pad > 0 || p_.scale.height != p_.height || p_.scale.width != p_.width;
  }
  [[nodiscard]] static Augment window_of(const ImagePreparation& p) {
    Augment a = p.window;
    a.height = p.height;
    a.width = p.width;
    a.random_crop = a.mirror = false;
    return a;
  }
  [[nodiscard]] static Schema scaled(const ImagePreparation& p, std::int64_t channels) {
    Schema s;
    s.name = "the scaled image";
    s.channels = channels;
    s.height = p.scale.height;
    s.width = p.scale.width;
    s.classes = 1;
    s.mean.assign(static_cast<std::size_t>(channels), 0.0F);
    s.stddev.assign(static_cast<std::size_t>(channels), 1.0F);
    return s;
  }
  static void as_it_is(const ImageDecoders& decoders, std::span<const std::uint8_t> bytes, const ImageHeader& h,
                       std::string_view where, DecodedImage& image, std::span<std::uint8_t> out) {
    decoders.decode(bytes, h, {{0, 0, h.width, h.height}, 0, 0, DecodeQuality::accurate}, where, image);
    const std::size_t row = static_cast<std::size_t>(h.width) * 3;
    for (int y = 0; y < h.height; ++y)
      std::copy_n(image.row(y - image.y) - std::ptrdiff_t{3} * image.x, row,
                  out.data() + static_cast<std::size_t>(y) * row);
  }

  ImagePreparation p_;
  std::int64_t channels_;
  ImageAugmenter scale_;
  Augmenter window_;
};

}  // namespace tutti::interchange
