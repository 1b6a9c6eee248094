// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstdio>

#ifdef TUTTI_COVERAGE
extern "C" void __gcov_dump();
#endif

namespace tutti::testing {

// Ends a process that fork() made, without the cleanup of the test's process. Writes the counts of tests/coverage.py.
[[noreturn]] inline void end_process(int status) {
  std::fflush(nullptr);
#ifdef TUTTI_COVERAGE
  __gcov_dump();
#endif
  ::_exit(status);
}

}  // namespace tutti::testing
