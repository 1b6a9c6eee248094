// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <exception>

#include <tutti/core/error.hpp>

namespace tutti {

// What main() returns: f()'s result, or where it throws the error's exit code, after "program: error" on standard
// error. What has been printed until then comes before it.
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
