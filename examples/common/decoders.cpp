// SPDX-License-Identifier: MIT
#include "decoders.hpp"

#include <tutti/backends/decoders.hpp>

namespace tutti::examples {

ImageDecoders make_decoders(const std::string& word) { return make_image_decoders(word, "--decoder"); }

}  // namespace tutti::examples
