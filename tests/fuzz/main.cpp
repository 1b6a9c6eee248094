// SPDX-License-Identifier: MIT
// One libFuzzer program for all targets: `fuzz TARGET [CORPUS] [-FLAG=...]`. This one unit contains all targets, so
// that the compiler parses and instruments the headers once. CMake writes targets.hpp, which includes all targets and
// defines FUZZ_EACH(target), the list of their names.
#include "targets.hpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

struct Target {
  std::string_view name;
  int (*run)(const std::uint8_t* data, std::size_t size);
};

#define FUZZ_TARGET(target) Target{#target, fuzz::target::run},
constexpr Target targets[] = {FUZZ_EACH(FUZZ_TARGET)};
#undef FUZZ_TARGET

const Target* chosen = nullptr;

}  // namespace

// libFuzzer calls this function before it reads the arguments. Removes the name of the target from them.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string_view name = *argc > 1 ? (*argv)[1] : "";
  for (const Target& target : targets)
    if (target.name == name) chosen = &target;
  if (chosen == nullptr) {
    std::fprintf(stderr, "[fuzz] expected a target as the first argument, got '%.*s'. hint: one of",
                 static_cast<int>(name.size()), name.data());
    for (const Target& target : targets) std::fprintf(stderr, " %s", target.name.data());
    std::fputc('\n', stderr);
    std::exit(2);
  }
  (*argv)[1] = (*argv)[0];
  ++*argv;
  --*argc;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { return chosen->run(data, size); }
