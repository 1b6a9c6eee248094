// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/images/image_decoder.hpp>
#ifdef TUTTI_HAS_TURBOJPEG
#include <tutti/backends/turbojpeg/turbojpeg.hpp>
#endif
#ifdef TUTTI_HAS_STB
#include <tutti/backends/stb/stb.hpp>
#endif

namespace tutti {

// Returns the image decoders with which the program was linked: the one that `word` names ("turbojpeg", "stb"), or with
// "auto" all of them, the fastest first. UsageError if the program lacks it. where: what the error names.
[[nodiscard]] inline ImageDecoders make_image_decoders(const std::string& word = "auto",
                                                       const std::string& where = "image decoders") {
  std::vector<std::shared_ptr<const ImageDecoder>> found;
#ifdef TUTTI_HAS_TURBOJPEG
  if (word == "auto" || word == "turbojpeg") found.push_back(std::make_shared<TurbojpegDecoder>());
#endif
#ifdef TUTTI_HAS_STB
  if (word == "auto" || word == "stb") found.push_back(std::make_shared<StbDecoder>());
#endif
  if (found.empty())
    fail<UsageError>(where, "a decoder of this build", word, "install libjpeg-dev or libstb-dev and build again");
  return ImageDecoders(std::move(found));
}

}  // namespace tutti
