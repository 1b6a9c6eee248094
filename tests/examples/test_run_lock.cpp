// SPDX-License-Identifier: MIT
#include <chrono>
#include <filesystem>
#include <optional>

#include <doctest/doctest.h>

#include "data/temp_folder.hpp"
#include "tools/trainer/run_lock.hpp"

using namespace tutti;
using std::chrono::milliseconds;
using trainer::RunLock;

TEST_CASE("only one process at a time holds the lock of a run's folder") {
  const test::TempFolder folder;
  std::optional<RunLock> first(std::in_place);
  RunLock second, elsewhere;
  CHECK(first->take(folder.path(), milliseconds(0)));
  CHECK(first->take(folder.path(), milliseconds(0)));
  CHECK_FALSE(second.take(folder.path(), milliseconds(0)));
  std::filesystem::create_directory(folder.path() / "other");
  CHECK(elsewhere.take(folder.path() / "other", milliseconds(0)));
  first.reset();
  CHECK(second.take(folder.path(), milliseconds(0)));
}

TEST_CASE("a folder that cannot be locked is open to all processes") {
  RunLock lock;
  CHECK(lock.take("/nowhere/at/all", milliseconds(0)));
  CHECK_NOTHROW(lock.require("/dev/null"));
}
