// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

// The random choices of an augmentation for an image, without its pixels. The backend that has the pixels, such as a
// device, applies them.
namespace tutti {

// The padding around an image: one value, or the image mirrored at its border pixels, which are not repeated (numpy's
// and PyTorch's "reflect": 3 2 1 | 0 1 2 3). For `reflect`, the image must be larger than the padding.
enum class PadMode : std::uint8_t { constant, reflect };

// Returns the position in a row of n that position i maps to when the row is reflected at its ends; -n < i < 2n - 1.
[[nodiscard]] constexpr std::int64_t reflected(std::int64_t i, std::int64_t n) noexcept {
  return i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
}

// The part of a stored image that becomes a row of a batch. It has 16 bytes, which devices read without conversion.
struct ImageWindow {
  std::int32_t image = 0;                // index of the stored image
  std::int32_t top = 0, left = 0;        // its corner in the image's coordinates; pixels outside the image are padding
  std::int8_t mirror = 0;                // 1: mirrored left to right, after the cut
  std::int8_t shift_y = 0, shift_x = 0;  // then shifted up and left; missing pixels are reflected at the window's edge
  std::int8_t unused = 0;
  friend bool operator==(const ImageWindow&, const ImageWindow&) = default;
};
static_assert(sizeof(ImageWindow) == 16 && std::is_trivially_copyable_v<ImageWindow>);

// A complete data set in a backend's memory, and the size of the windows that are cut out of its images.
struct ResidentImages {
  const std::uint8_t* images = nullptr;  // [size, height, width, channels]
  const std::int32_t* labels = nullptr;  // [size]
  const std::uint8_t* fill = nullptr;    // [channels], the padding of PadMode::constant
  std::int64_t size = 0;
  std::int32_t height = 0, width = 0, channels = 0;
  std::int32_t out_height = 0, out_width = 0;
  PadMode pad_mode = PadMode::constant;
};

}  // namespace tutti
