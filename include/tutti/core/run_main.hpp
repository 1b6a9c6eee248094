// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <string>
#include <type_traits>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/core/exit_code_of.hpp>

namespace tutti {

// Thrown by fit(job, ...) in a process that ends before the run is complete, after it has saved and printed everything:
// it was interrupted (130, 143), is to be restarted with other members (75), has left the job (0), or failed with an
// error that was printed. run_main() ends the process with the code and prints no more.
class RunEnded : public Error {
 public:
  explicit RunEnded(const std::string& message, int code) : Error(message, static_cast<ExitCode>(code)) {}
};

// Runs f() and returns the value for main() to return: f's result, or 0 if f returns void. If f() throws, prints
// "program: error" on standard error and returns the exit code of docs/reference/errors.md.
//   int main() { return tutti::run_main([] { ... }); }
template <class F>
[[nodiscard]] int run_main(const char* program, F&& f) noexcept {
  return exit_code_of(program, [&]() -> int {
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<F>>)
        return std::forward<F>(f)(), static_cast<int>(ExitCode::ok);
      else
        return std::forward<F>(f)();
    } catch (const RunEnded& e) {
      return e.exit_code();
    }
  });
}
// Uses the name of the running program.
template <class F>
[[nodiscard]] int run_main(F&& f) noexcept {
  return run_main(::program_invocation_short_name, std::forward<F>(f));
}

}  // namespace tutti
