// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tutti::data_tool {

// The Example in `payload` with the image's bytes and what describes them replaced; every other feature (class text,
// bounding boxes) stays as it is. Throws DataError naming `where`.
[[nodiscard]] std::string replace_image(std::span<const std::uint8_t> payload, int width, int height,
                                        std::span<const std::uint8_t> jpeg, std::string_view where);

}  // namespace tutti::data_tool
