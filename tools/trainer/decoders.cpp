// SPDX-License-Identifier: MIT
#include "tools/trainer/decoders.hpp"

#include <tutti/backends/decoders.hpp>

namespace tutti::trainer {

ImageDecoders make_decoders(const std::string& word) { return make_image_decoders(word, "--decoder"); }

}  // namespace tutti::trainer
