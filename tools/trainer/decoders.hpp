// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/data/images/image_decoder.hpp>

namespace tutti::trainer {

// The image decoders of this build, compiled once for all programs: those that `word` names, "auto" all of them, the
// fastest first. Throws UsageError for one that the build does not have.
ImageDecoders make_decoders(const std::string& word);

}  // namespace tutti::trainer
