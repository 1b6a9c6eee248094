// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/data/images/image_decoder.hpp>

namespace tutti::trainer {

// Returns the image decoders of this build that `word` names. "auto" means all decoders, the fastest first. Throws
// UsageError if the build does not have the decoder. Compiled once for all programs.
ImageDecoders make_decoders(const std::string& word);

}  // namespace tutti::trainer
