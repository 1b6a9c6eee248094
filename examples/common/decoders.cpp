// SPDX-License-Identifier: MIT
#include "decoders.hpp"

#include <memory>
#include <utility>
#include <vector>

#ifdef TUTTI_HAS_TURBOJPEG
#include <tutti/backends/turbojpeg/turbojpeg.hpp>
#endif
#ifdef TUTTI_HAS_STB
#include <tutti/backends/stb/stb.hpp>
#endif

namespace tutti::examples {

ImageDecoders make_decoders(const std::string& word) {
  std::vector<std::shared_ptr<const ImageDecoder>> found;
#ifdef TUTTI_HAS_TURBOJPEG
  if (word == "auto" || word == "turbojpeg") found.push_back(std::make_shared<TurbojpegDecoder>());
#endif
#ifdef TUTTI_HAS_STB
  if (word == "auto" || word == "stb") found.push_back(std::make_shared<StbDecoder>());
#endif
  if (found.empty())
    fail<UsageError>("--decoder", "one that this build has", word, "install libjpeg-dev or libstb-dev and build again");
  return ImageDecoders(std::move(found));
}

}  // namespace tutti::examples
