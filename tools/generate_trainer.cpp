// SPDX-License-Identifier: MIT
// header-only
// Writes a script for each host. The script starts the processes of this host, in a job with parameter servers. See
// generate_trainer/options.hpp.
#include <cstdio>
#include <string>
#include <vector>

#include <tutti/core/exit_code_of.hpp>

#include "tools/generate_trainer/options.hpp"
#include "tools/generate_trainer/scripts.hpp"

int main(int argc, char** argv) {
  using namespace tutti;
  using namespace tutti::generate_trainer;
  return exit_code_of("generate-trainer", [&] {
    const Options o = parse_options(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
    if (!o.text.empty()) return std::fputs(o.text.c_str(), stdout) < 0 ? 1 : 0;
    write_scripts(o);
    return 0;
  });
}
