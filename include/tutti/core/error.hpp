// SPDX-License-Identifier: MIT
#pragma once

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tutti needs a little-endian processor: tensors of files and messages are used in place"
#endif

#include <stdexcept>
#include <string>

#include <tutti/core/separate.hpp>
#include <tutti/core/text_part.hpp>

// Every error that tutti throws: "[where] expected ..., got .... hint: ..." and the exit code that the program should
// return.
namespace tutti {

// Exit codes of tutti's programs (docs/reference/errors.md).
enum class ExitCode : int {
  ok = 0,
  internal = 1,
  usage = 2,
  data = 3,
  device = 4,
  communication = 5,
  not_finite = 6,
  restart = 75,
  interrupted = 130,
  terminated = 143,
};

class Error : public std::runtime_error {  // Base class of all errors. The default exit code is 1.
 public:
  explicit Error(const std::string& message, ExitCode code = ExitCode::internal)
      : std::runtime_error(message), code_(code) {}
  [[nodiscard]] int exit_code() const noexcept { return static_cast<int>(code_); }

 private:
  ExitCode code_;
};

// A wrong argument, option, configuration key or shape.
struct UsageError : Error {
  explicit UsageError(const std::string& m) : Error(m, ExitCode::usage) {}
};

// Shapes that do not fit together. Thrown by the builder call that has the mistake.
struct ShapeError : UsageError {
  using UsageError::UsageError;
};

// A missing, truncated, corrupt or hostile file.
struct DataError : Error {
  explicit DataError(const std::string& m) : Error(m, ExitCode::data) {}
};

// A compute device or its library is missing or reports an error.
struct DeviceError : Error {
  explicit DeviceError(const std::string& m) : Error(m, ExitCode::device) {}
};

struct CommunicationError : Error {  // exit code 5
  explicit CommunicationError(const std::string& m) : Error(m, ExitCode::communication) {}
};

// A loss or a gradient is not finite.
struct NotFiniteError : Error {
  explicit NotFiniteError(const std::string& m) : Error(m, ExitCode::not_finite) {}
};

// Returns the message in the uniform format; `hint` may be empty.
[[gnu::cold]] TUTTI_CORE_FUNCTION std::string error_message(TextPart where, TextPart expected, TextPart got,
                                                            TextPart hint = {});
#if TUTTI_CORE_DEFINITIONS
[[gnu::cold]] TUTTI_CORE_FUNCTION std::string error_message(TextPart where, TextPart expected, TextPart got,
                                                            TextPart hint) {
  std::string m, advice;
  TextPart{"[", where, "] expected ", expected, ", got ", got, "."}.append_to(m);
  hint.append_to(advice);
  if (!advice.empty()) m.append(" hint: ").append(advice).append(".");
  return m;
}
#endif

// Throws E with the message in the uniform format. For example:
//   fail<ShapeError>(layer, {"an input of ", rank, " dimensions"}, to_string(shape));
template <class E = Error>
[[noreturn, gnu::cold, gnu::noinline]] void fail(TextPart where, TextPart expected, TextPart got, TextPart hint = {}) {
  throw E(error_message(where, expected, got, hint));
}

}  // namespace tutti
