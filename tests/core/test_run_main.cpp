// SPDX-License-Identifier: MIT
// Tests which exit code run_main() returns.
#include <doctest/doctest.h>

#include <stdexcept>

#include <tutti/core/run_main.hpp>

using namespace tutti;

TEST_CASE("run_main returns the result of the function, or 0 if it returns void") {
  bool ran = false;
  CHECK(run_main([&] { ran = true; }) == 0);
  CHECK(ran);
  CHECK(run_main([] { return 7; }) == 7);
}

TEST_CASE("run_main returns the exit code of the error") {
  CHECK(run_main([] { fail<UsageError>("here", "this", "that"); }) == 2);
  CHECK(run_main([] { fail<DataError>("here", "this", "that"); }) == 3);
  CHECK(run_main([] { fail<DeviceError>("here", "this", "that"); }) == 4);
  CHECK(run_main([] { fail<CommunicationError>("here", "this", "that"); }) == 5);
  CHECK(run_main("program", [] { fail<NotFiniteError>("here", "this", "that"); }) == 6);
  CHECK(run_main([] { throw std::runtime_error("nobody expected it"); }) == 1);
}

TEST_CASE("run_main returns the code of a run that ended early") {
  for (const int code : {0, 75, 130, 143}) CHECK(run_main([&] { throw RunEnded("said already", code); }) == code);
}
