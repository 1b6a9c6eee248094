// SPDX-License-Identifier: MIT
// Tests the owner and the lock of a run's folder.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include <tutti/train/detail/files/run_folder.hpp>

#include "data/temp_folder.hpp"

using namespace tutti;
using std::chrono::milliseconds;
using tutti::detail::require_own_folder;
using tutti::detail::RunFolderLock;
namespace fs = std::filesystem;

TEST_CASE("a run in /tmp does not use a folder that another user may have planted") {
  const test::TempFolder folder;
  const fs::path shared = folder.path() / "shared", own = folder.path() / "own";
  fs::create_directory(own);
  fs::create_directory(own / "run");
  fs::create_directory(shared);
  REQUIRE(::chmod(shared.c_str(), 01777) == 0);

  // Accepted: a folder that does not exist yet, a folder of this user, and links that no other user can have made.
  CHECK_NOTHROW(require_own_folder(shared / "new", "--run-dir"));
  fs::create_directory(shared / "mine");
  CHECK_NOTHROW(require_own_folder(shared / "mine", "--run-dir"));
  CHECK_NOTHROW(require_own_folder(shared / "mine/", "--run-dir"));
  fs::create_directory_symlink(own / "run", own / "link");
  CHECK_NOTHROW(require_own_folder(own / "link", "--run-dir"));
  CHECK_NOTHROW(require_own_folder("run", "--run-dir"));

  fs::create_directory_symlink(own / "run", shared / "link");
  for (const fs::path& path : {shared / "link", shared / "link/", shared / "." / "link"})
    CHECK_THROWS_WITH_AS(require_own_folder(path, "--run-dir"), doctest::Contains("which is a link"), UsageError);
  fs::create_directory_symlink(own / "nothing", shared / "dangling");
  CHECK_THROWS_WITH_AS(require_own_folder(shared / "dangling", "--eval-dir"), doctest::Contains("[--eval-dir]"),
                       UsageError);
}

TEST_CASE("a run in /tmp does not use a folder of another user") {
  if (::geteuid() != 0) {
    std::puts("SKIP: to give a folder to another user needs root");
    return;
  }
  const test::TempFolder folder;
  const fs::path shared = folder.path() / "shared";
  fs::create_directory(shared);
  REQUIRE(::chmod(shared.c_str(), 01777) == 0);
  fs::create_directory(shared / "theirs");
  REQUIRE(::chown((shared / "theirs").c_str(), 12345, 12345) == 0);
  CHECK_THROWS_WITH_AS(require_own_folder(shared / "theirs", "--run-dir"), doctest::Contains("user 12345's"),
                       UsageError);
}

TEST_CASE("only one process at a time holds the lock of a run's folder") {
  const test::TempFolder folder;
  std::optional<RunFolderLock> first(std::in_place);
  RunFolderLock second, elsewhere;
  CHECK(first->take(folder.path(), milliseconds(0)));
  CHECK(first->take(folder.path(), milliseconds(0)));
  CHECK_FALSE(second.take(folder.path(), milliseconds(0)));
  std::filesystem::create_directory(folder.path() / "other");
  CHECK(elsewhere.take(folder.path() / "other", milliseconds(0)));
  first.reset();
  CHECK(second.take(folder.path(), milliseconds(0)));
}

TEST_CASE("a folder that cannot be locked is open to all processes") {
  RunFolderLock lock;
  CHECK(lock.take("/nowhere/at/all", milliseconds(0)));
  CHECK_NOTHROW(lock.require("/dev/null", "--run-dir"));
}
