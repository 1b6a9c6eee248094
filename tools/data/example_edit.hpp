// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tutti::data_tool {

// Returns the Example in `payload` with a new image and its description. Keeps all other features (class text, bounding
// boxes). Throws DataError that names `where`.
[[nodiscard]] std::string replace_image(std::span<const std::uint8_t> payload, int width, int height,
                                        std::span<const std::uint8_t> jpeg, std::string_view where);

}  // namespace tutti::data_tool
