// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/augment/image_op.hpp>
#include <tutti/data/augment/policy_options.hpp>

// Draws the operations of a policy for one image.
namespace tutti {

inline constexpr int most_policy_operations = 16;

// The operations of one image, in the order in which they are applied.
struct PolicyDraw {
  std::array<ImageOpCall, most_policy_operations> calls{};
  int count = 0;
  void add(const ImageOpCall& call) { calls[static_cast<std::size_t>(count++)] = call; }
  [[nodiscard]] std::span<const ImageOpCall> all() const& { return {calls.data(), static_cast<std::size_t>(count)}; }
  void all() const&& = delete;  // the span would outlive the object
  friend bool operator==(const PolicyDraw&, const PolicyDraw&) = default;
};

// Throws UsageError for a value out of its range.
inline void check(const AugmentPolicy& p) {
  const auto require = [](bool ok, const char* expected, double got) {
    if (!ok) fail<UsageError>("augmentation policy", expected, got);
  };
  require(p.operations >= 1 && p.operations <= most_policy_operations, "1 to 16 operations", p.operations);
  require(p.bins >= 2 && p.bins <= 1000, "2 to 1000 bins", p.bins);
  require(p.most > 0 && p.most <= 100, "a largest magnitude over 0 to 100", p.most);
  require(p.deviation >= 0 && p.deviation <= 1e9, "a deviation of the magnitude of 0 to 1e9", p.deviation);
  require(p.probability >= 0 && p.probability <= 1, "a probability of 0 to 1", p.probability);
  if (p.rule == PolicyRule::rand_torchvision) {
    require(p.magnitude >= 0 && p.magnitude < p.bins && p.magnitude == std::floor(p.magnitude),
            "a magnitude that is a bin, from 0", p.magnitude);
  } else {
    require(p.magnitude >= 0 && p.magnitude <= 100, "a magnitude of 0 to 100", p.magnitude);
  }
}

namespace detail {

// The operations of torchvision's RandAugment and TrivialAugmentWide, in the order of their code.
inline constexpr std::array<ImageOp, 14> torchvision_ops{
    ImageOp::identity,  ImageOp::shear_x,    ImageOp::shear_y,       ImageOp::translate_x, ImageOp::translate_y,
    ImageOp::rotate,    ImageOp::brightness, ImageOp::colour,        ImageOp::contrast,    ImageOp::sharpness,
    ImageOp::posterize, ImageOp::solarize,   ImageOp::auto_contrast, ImageOp::equalize};
// Those of timm's RandAugment.
inline constexpr std::array<ImageOp, 15> timm_ops{
    ImageOp::auto_contrast, ImageOp::equalize,     ImageOp::invert,  ImageOp::rotate,      ImageOp::posterize,
    ImageOp::solarize,      ImageOp::solarize_add, ImageOp::colour,  ImageOp::contrast,    ImageOp::brightness,
    ImageOp::sharpness,     ImageOp::shear_x,      ImageOp::shear_y, ImageOp::translate_x, ImageOp::translate_y};

[[nodiscard]] constexpr bool has_value(ImageOp op) noexcept {
  return op != ImageOp::identity && op != ImageOp::auto_contrast && op != ImageOp::equalize && op != ImageOp::invert;
}

inline bool coin(Rng& rng) noexcept { return rng.below(2) == 1; }

inline Interpolation drawn(Interpolation i, Rng& rng) noexcept {
  return i != Interpolation::random ? i : coin(rng) ? Interpolation::bicubic : Interpolation::bilinear;
}

// Returns number `bin` of torch.linspace(0, end, bins), in the f32 arithmetic of its kernels for AVX2 and AVX512:
// number 15 of 31 up to 32 is a little less than 16, so torchvision shifts by 15 pixels.
inline double linspace(double end, int bins, int bin) noexcept {
  const auto last = static_cast<float>(end), step = last / static_cast<float>(bins - 1);
  return bin < bins / 2 ? step * static_cast<float>(bin) : std::fma(-step, static_cast<float>(bins - 1 - bin), last);
}

// Returns the value of bin `bin` of an operation of torchvision, with `sign` for operations that have one.
inline double torchvision_value(ImageOp op, const AugmentPolicy& p, int bin, double sign, int width, int height) {
  const bool wide = p.rule == PolicyRule::trivial_wide;
  const auto value = [&](double wide_end, double end) { return sign * linspace(wide ? wide_end : end, p.bins, bin); };
  switch (op) {
    case ImageOp::shear_x:
    case ImageOp::shear_y:
      return value(0.99, 0.3);
    case ImageOp::translate_x:
      return -std::trunc(value(32, 150.0 / 331.0 * width));
    case ImageOp::translate_y:
      return -std::trunc(value(32, 150.0 / 331.0 * height));
    case ImageOp::rotate:
      return value(135, 30);
    case ImageOp::posterize:
      return 8 - std::nearbyint(bin / ((p.bins - 1) / (wide ? 6.0 : 4.0)));
    case ImageOp::solarize:
      return 255 - linspace(255, p.bins, bin);
    default:
      return 1 + value(0.99, 0.9);
  }
}

// Returns the value of an operation of timm at a magnitude, with `sign` for operations that have one.
inline double timm_value(ImageOp op, const AugmentPolicy& p, double magnitude, double sign, int width, int height) {
  const double part = magnitude / 10;
  const double bits = std::trunc(part * 4), threshold = std::min(256.0, std::trunc(part * 256));
  switch (op) {
    case ImageOp::rotate:
      return sign * part * 30;
    case ImageOp::posterize:
      return std::max(0.0, p.increasing ? 4 - bits : bits);
    case ImageOp::solarize:
      return p.increasing ? 256 - threshold : threshold;
    case ImageOp::solarize_add:
      return std::min(128.0, std::trunc(part * 110));
    case ImageOp::shear_x:
    case ImageOp::shear_y:
      return sign * part * 0.3;
    case ImageOp::translate_x:
      return sign * part * 0.45 * width;
    case ImageOp::translate_y:
      return sign * part * 0.45 * height;
    default:
      return p.increasing ? std::max(0.1, 1 + sign * part * 0.9) : part * 1.8 + 0.1;
  }
}

[[nodiscard]] constexpr bool has_sign(ImageOp op, const AugmentPolicy& p) noexcept {
  switch (op) {
    case ImageOp::posterize:
    case ImageOp::solarize:
    case ImageOp::solarize_add:
      return false;
    case ImageOp::colour:
    case ImageOp::contrast:
    case ImageOp::brightness:
    case ImageOp::sharpness:
      return p.rule != PolicyRule::rand_timm || p.increasing;
    default:
      return has_value(op);
  }
}

inline double timm_magnitude(const AugmentPolicy& p, Rng& rng) noexcept {
  double m = p.magnitude;
  if (p.deviation > 100)
    m = p.magnitude * rng.uniform53();
  else if (p.deviation > 0)
    m = p.magnitude + p.deviation * rng.normal();
  return std::clamp(m, 0.0, p.most);
}

}  // namespace detail

// Returns the operations for an image of this size. A pure function of its arguments; the image's pixels play no part.
// Takes no random numbers if the rule is none.
[[nodiscard]] inline PolicyDraw draw_policy(const AugmentPolicy& p, int width, int height, Rng& rng) {
  using namespace detail;
  PolicyDraw draw;
  if (p.rule == PolicyRule::none) return draw;
  const bool timm = p.rule == PolicyRule::rand_timm;
  const int operations = p.rule == PolicyRule::trivial_wide ? 1 : p.operations;
  for (int k = 0; k < operations; ++k) {
    ImageOpCall call;
    call.op = timm ? timm_ops[rng.below(timm_ops.size())] : torchvision_ops[rng.below(torchvision_ops.size())];
    if (timm && p.probability < 1 && rng.uniform53() >= p.probability) continue;
    if (has_value(call.op)) {
      const int bin = p.rule == PolicyRule::trivial_wide
                          ? static_cast<int>(rng.below(static_cast<std::uint32_t>(p.bins)))
                          : static_cast<int>(p.magnitude);
      const double magnitude = timm ? timm_magnitude(p, rng) : 0;
      const double sign = has_sign(call.op, p) && coin(rng) ? -1 : 1;
      call.value = timm ? timm_value(call.op, p, magnitude, sign, width, height)
                        : torchvision_value(call.op, p, bin, sign, width, height);
    }
    if (is_geometric(call.op)) call.interpolation = drawn(p.interpolation, rng);
    draw.add(call);
  }
  return draw;
}

}  // namespace tutti
