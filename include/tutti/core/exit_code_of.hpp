// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <exception>

#include <tutti/core/error.hpp>

namespace tutti {

// Calls f and returns its result, for main() to return. If f throws, flushes standard output, prints "program: error"
// to standard error, and returns the error's exit code.
template <class F>
[[nodiscard]] int exit_code_of(const char* program, F&& f) noexcept {
  try {
    return f();
  } catch (const Error& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", program, e.what());
    return e.exit_code();
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: [internal] %s\n", program, e.what());
    return static_cast<int>(ExitCode::internal);
  }
}

}  // namespace tutti
