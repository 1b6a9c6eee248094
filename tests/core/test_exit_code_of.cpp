// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <stdexcept>

#include <tutti/core/exit_code_of.hpp>

using namespace tutti;

TEST_CASE("the exit code of main is the returned code, the code of the error, or the code of an internal error") {
  CHECK(exit_code_of("program", [] { return 7; }) == 7);
  CHECK(exit_code_of("program", []() -> int { fail<DataError>("record 7", "3073 bytes", "12"); }) ==
        static_cast<int>(ExitCode::data));
  CHECK(exit_code_of("program", []() -> int { throw std::runtime_error("no error of tutti's"); }) ==
        static_cast<int>(ExitCode::internal));
}
