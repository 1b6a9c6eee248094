// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tutti/io/append_file.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>

#include "../data/temp_folder.hpp"
#include "size_limit.hpp"

using namespace tutti::io;
using tutti::DataError;
using tutti::test::contains;
using tutti::test::message_of;
using tutti::test::SizeLimit;
using tutti::test::TempFolder;
using tutti::test::write_text;

namespace {

std::size_t entries(const Path& folder) {
  std::size_t n = 0;
  for (const auto& e : std::filesystem::directory_iterator(folder)) n += e.exists() ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("read_file reads regular files up to a limit") {
  const TempFolder folder;
  write_text(folder / "a", "hello");
  CHECK(read_text_file(folder / "a", 5) == "hello");
  CHECK(read_file(folder / "a", 5).size() == 5);
  CHECK(contains(message_of<DataError>([&] { (void)read_file(folder / "a", 4); }), "at most 4 bytes, got 5"));
  CHECK(contains(message_of<DataError>([&] { (void)read_file(folder / "none", 4); }), "none"));
  CHECK(contains(message_of<DataError>([&] { (void)read_file(folder.path(), 4); }), "a folder"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(contains(message_of<DataError>([&] { (void)read_file(folder / "pipe", 4); }), "regular file"));
  try {
    (void)read_file(folder / "none", 4);
    FAIL("it was read");
  } catch (const FileError& e) {
    CHECK(e.error_number() == ENOENT);
    CHECK(e.exit_code() == 3);
  }
}

TEST_CASE("MappedFile maps a file") {
  const TempFolder folder;
  write_text(folder / "a", "hello");
  write_text(folder / "empty", "");
  MappedFile a(folder / "a");
  MappedFile b = std::move(a);
  CHECK(a.bytes().empty());
  REQUIRE(b.bytes().size() == 5);
  CHECK(static_cast<char>(b.bytes()[4]) == 'o');
  CHECK(MappedFile(folder / "empty").bytes().empty());
  CHECK_THROWS_AS(MappedFile(folder / "a", 4), DataError);
}

TEST_CASE("FileWriter writes small and large pieces, with size and checksum") {
  const TempFolder folder;
  std::string expected;
  FileWriter writer(folder / "a");
  for (int i = 0; i < 3000; ++i) {
    const std::string piece(static_cast<std::size_t>(i % 97 == 0 ? 70000 : i % 50), static_cast<char>('a' + i % 26));
    writer.write(piece);
    expected += piece;
  }
  writer.sync();
  writer.close();
  CHECK(writer.size() == expected.size());
  CHECK(writer.crc() == crc32c(expected));
  CHECK(read_text_file(folder / "a", 1 << 24) == expected);
  CHECK_THROWS_AS(FileWriter(folder / "no" / "a"), FileError);
}

TEST_CASE("atomic_write_file replaces the file or leaves it unchanged, and leaves no other file") {
  const TempFolder folder;
  atomic_write_file(folder / "a", "one");
  atomic_write_file(folder / "a", "two");
  CHECK(read_text_file(folder / "a", 10) == "two");
  CHECK_THROWS_AS(atomic_write_file(folder / "a",
                                    [](FileWriter& w) {
                                      w.write("three");
                                      throw tutti::UsageError("stop");
                                    }),
                  tutti::UsageError);
  {
    const SizeLimit limit(1000);
    const std::string message = message_of<FileError>([&] { atomic_write_file(folder / "a", std::string(5000, 'x')); });
    CHECK(contains(message, "to write " + (folder / "a").string() + ", got"));
    CHECK(contains(message, "ulimit"));
  }
  CHECK(read_text_file(folder / "a", 10) == "two");
  CHECK(entries(folder.path()) == 1);
  // Messages name the file of the request, not the temporary file.
  const auto refusal = [](const Path& path) { return message_of<FileError>([&] { atomic_write_file(path, "x"); }); };
  CHECK(contains(refusal(folder / "none" / "b"), "to create " + (folder / "none" / "b").string() + ", got"));
  std::filesystem::create_directories(folder / "c" / "full");
  CHECK(contains(refusal(folder / "c"), "to replace " + (folder / "c").string() + ", got"));
  CHECK(entries(folder.path()) == 2);
}

TEST_CASE("AppendFile removes data that could not be written completely") {
  const TempFolder folder;
  AppendFile file(folder / "a", AppendFile::Mode::continue_file);
  file.append("first\n");
  {
    const SizeLimit limit(1000);
    CHECK_THROWS_AS(file.append(std::string(5000, 'x')), FileError);
  }
  file.append("second\n");
  CHECK(read_text_file(folder / "a", 100) == "first\nsecond\n");
  CHECK_THROWS_AS(AppendFile(folder / "a", AppendFile::Mode::new_file), FileError);
}

TEST_CASE("remove_stale_asides removes only files of dead processes") {
  const TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  const auto aside = [&](const std::string& host, pid_t pid) {
    return folder / (".tmp-x@" + host + "@" + std::to_string(pid) + ".0");
  };
  const std::string host = detail::host_name();
  const auto dead = aside(host, child), own = aside(host, ::getpid()), alive = aside(host, ::getppid()),
             elsewhere = aside("another-host", child), old = aside("old-host", child);
  for (const auto& p : {dead, own, alive, elsewhere, old}) write_text(p / "file", "x");
  std::filesystem::last_write_time(old, std::filesystem::file_time_type::clock::now() - std::chrono::hours(48));
  for (const char* other : {"keep", ".tmp-", ".tmp-x", ".tmp-x@", ".tmp-x@1", ".tmp-@@", ".tmp-x@y@z.0"})
    write_text(folder / other, "x");
  remove_stale_asides(folder.path());
  CHECK_FALSE(path_exists(dead));
  CHECK_FALSE(path_exists(own));
  CHECK_FALSE(path_exists(old));
  CHECK(path_exists(alive));
  CHECK(path_exists(elsewhere));
  CHECK(entries(folder.path()) == 9);
}

TEST_CASE("directories are created and synchronised") {
  const TempFolder folder;
  make_directories(folder / "a" / "b");
  fsync_directory(folder / "a");
  write_text(folder / "a" / "b" / "c", "x");
  rename_path(folder / "a", folder / "d");
  CHECK(path_exists(folder / "d" / "b" / "c"));
  remove_tree(folder / "d");
  remove_tree(folder / "d");
  CHECK_FALSE(path_exists(folder / "d"));
  CHECK_THROWS_AS(rename_path(folder / "d", folder / "e"), FileError);
  CHECK_THROWS_AS(fsync_directory(folder / "d"), FileError);
  CHECK(free_bytes(folder / "not" / "there").has_value());
}
