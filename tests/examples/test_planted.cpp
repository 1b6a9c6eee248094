// SPDX-License-Identifier: MIT
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "data/temp_folder.hpp"
#include "tools/trainer/trusted_dir.hpp"

using namespace tutti;
using trainer::require_trusted_dir;
namespace fs = std::filesystem;

TEST_CASE("a run in /tmp does not use a folder that another user may have planted") {
  const test::TempFolder folder;
  const fs::path shared = folder.path() / "shared", own = folder.path() / "own";
  fs::create_directory(own);
  fs::create_directory(own / "run");
  fs::create_directory(shared);
  REQUIRE(::chmod(shared.c_str(), 01777) == 0);

  // A folder that does not exist yet, a folder of this user, and folders that no other user can have made.
  CHECK_NOTHROW(require_trusted_dir(shared / "new", "--run-dir"));
  fs::create_directory(shared / "mine");
  CHECK_NOTHROW(require_trusted_dir(shared / "mine", "--run-dir"));
  CHECK_NOTHROW(require_trusted_dir(shared / "mine/", "--run-dir"));
  fs::create_directory_symlink(own / "run", own / "link");
  CHECK_NOTHROW(require_trusted_dir(own / "link", "--run-dir"));
  CHECK_NOTHROW(require_trusted_dir("run", "--run-dir"));

  fs::create_directory_symlink(own / "run", shared / "link");
  for (const fs::path& path : {shared / "link", shared / "link/", shared / "." / "link"})
    CHECK_THROWS_WITH_AS(require_trusted_dir(path, "--run-dir"), doctest::Contains("which is a link"), UsageError);
  fs::create_directory_symlink(own / "nothing", shared / "dangling");
  CHECK_THROWS_WITH_AS(require_trusted_dir(shared / "dangling", "--eval-dir"), doctest::Contains("[--eval-dir]"),
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
  CHECK_THROWS_WITH_AS(require_trusted_dir(shared / "theirs", "--run-dir"), doctest::Contains("user 12345's"),
                       UsageError);
}
