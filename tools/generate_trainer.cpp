// SPDX-License-Identifier: MIT
// header-only
// Writes a script for each host that starts its processes of a job with parameter servers, see trainer/options.hpp.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/version.hpp>

#include "trainer/options.hpp"
#include "trainer/scripts.hpp"

int main(int argc, char** argv) {
  using namespace tutti;
  using namespace tutti::trainer;
  try {
    const Options o = parse_options(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
    if (o.help) return std::fputs(help_text, stdout) < 0 ? 1 : 0;
    if (o.version) return std::printf("generate-trainer of tutti %s\n", version) < 0 ? 1 : 0;
    write_scripts(o);
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "generate-trainer: %s\n", e.what());
    return e.exit_code();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "generate-trainer: %s\n", e.what());
    return static_cast<int>(ExitCode::internal);
  }
}
