// SPDX-License-Identifier: MIT
// header-only
// Writes a script for each host that starts its processes of a job with parameter servers, see
// generate_trainer/options.hpp.
#include <cstdio>
#include <string>
#include <vector>

#include <tutti/core/exit_code_of.hpp>
#include <tutti/version.hpp>

#include "tools/generate_trainer/options.hpp"
#include "tools/generate_trainer/scripts.hpp"

int main(int argc, char** argv) {
  using namespace tutti;
  using namespace tutti::generate_trainer;
  return exit_code_of("generate-trainer", [&] {
    const Options o = parse_options(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
    if (o.help) return std::fputs(help_text, stdout) < 0 ? 1 : 0;
    if (o.version) return std::printf("generate-trainer of tutti %s\n", version) < 0 ? 1 : 0;
    write_scripts(o);
    return 0;
  });
}
