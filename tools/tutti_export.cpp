// SPDX-License-Identifier: MIT
// Writes a trained net as an ONNX file, see export/options.cpp.
#include <cstdio>
#include <string>
#include <vector>

#include <tutti/core/exit_code_of.hpp>

#include "tools/export/options.hpp"
#include "tools/export/write.hpp"

int main(int argc, char** argv) {
  using namespace tutti::export_tool;
  return tutti::exit_code_of("tutti-export", [&] {
    const Options o = parse_options(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
    if (!o.text.empty()) return std::fputs(o.text.c_str(), stdout) < 0 ? 1 : 0;
    return write(o);
  });
}
