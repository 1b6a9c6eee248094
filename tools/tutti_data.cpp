// SPDX-License-Identifier: MIT
// header-only
// Converts, shrinks and checks sets of encoded images, see data/options.hpp. Without libjpeg-turbo
// (TUTTI_HAS_TURBOJPEG) it cannot encode images. Without libjpeg-turbo and stb (TUTTI_HAS_STB) it cannot decode images
// either.
#include <cstdio>
#include <string>
#include <vector>

#include <tutti/core/exit_code_of.hpp>

#include "tools/data/commands.hpp"
#include "tools/data/options.hpp"

namespace {

using namespace tutti;
using namespace tutti::data_tool;

int run(const std::vector<std::string>& words) {
  const Options o = parse_options(words);
  if (!o.text.empty()) return std::fputs(o.text.c_str(), stdout) < 0 ? 1 : 0;
  switch (o.command) {
    case Command::convert:
      convert(o);
      return 0;
    case Command::preprocess:
      preprocess(o);
      return 0;
    case Command::resize:
      resize(o);
      return 0;
    case Command::info:
      info(o);
      return 0;
    default:
      return verify(o);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return exit_code_of("tutti-data",
                      [&] { return run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc)); });
}
