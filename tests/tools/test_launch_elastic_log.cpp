// SPDX-License-Identifier: MIT
// Tests the files of an elastic job when it begins: one job uses a folder, the message tells why a lock was refused,
// and hosts that other processes add are not lost.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <tutti/comm/work.hpp>
#include <tutti/core/error.hpp>

#include "data/temp_folder.hpp"
#include "tools/launch/elastic/elastic_file.hpp"
#include "tools/launch/elastic/elastic_log.hpp"

using namespace tutti;

namespace {

int lock_error = 0;  // the result of flock(); 0: that of the system

// Returns the message with which a job refuses the file; an empty text if it takes the file.
std::string refusal(const std::filesystem::path& file) {
  try {
    const launch::MembershipLog log(file);
    return {};
  } catch (const Error& e) {
    return e.what();
  }
}
bool is_of_other_job(const std::string& message) { return message.find("which another job uses") != message.npos; }

}  // namespace

extern "C" int flock(int descriptor, int operation) noexcept {
  if (lock_error == 0) return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
  errno = lock_error;
  return -1;
}

TEST_CASE("two jobs do not use one folder, also if one of them only knows flock()") {
  const test::TempFolder folder;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "log";
  const io::Descriptor other = io::Descriptor::open(file, O_RDWR | O_CREAT | O_CLOEXEC, "open");
  {
    launch::MembershipLog log(file);
    log.hosts_are_written();
    CHECK(launch::MembershipLog::in_use(file));
    CHECK(is_of_other_job(refusal(file)));
    CHECK(::flock(other.get(), LOCK_EX | LOCK_NB) != 0);
  }
  CHECK_FALSE(launch::MembershipLog::in_use(file));
  REQUIRE(::flock(other.get(), LOCK_EX | LOCK_NB) == 0);
  CHECK(is_of_other_job(refusal(file)));
  REQUIRE(::flock(other.get(), LOCK_UN) == 0);
  CHECK(refusal(file).empty());
}

TEST_CASE("no process changes the hosts file between the lock of the log and the first hosts file of a job") {
  const test::TempFolder folder;
  const io::Descriptor other(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  launch::MembershipLog log(folder / "log");
  CHECK(::flock(other.get(), LOCK_EX | LOCK_NB) != 0);
  log.hosts_are_written();
  CHECK(::flock(other.get(), LOCK_EX | LOCK_NB) == 0);
}

TEST_CASE("an edit of the hosts file between its first text and the beginning of the watch counts") {
  const test::TempFolder folder;
  const std::filesystem::path file = folder / "host_worker";
  test::write_text(file, "h1\nlocalhost\n");
  launch::HostsWatch watch(file, "localhost\n");
  std::optional<std::vector<launch::ListedHost>> hosts;
  const auto taken = [&] {
    hosts = watch.take().hosts;
    return hosts.has_value();
  };
  poll(taken, std::chrono::minutes(1), "the hosts of the edit");
  CHECK(hosts->size() == 2);
}

TEST_CASE("a lock that the system does not have is not taken for the lock of another job") {
  const test::TempFolder folder;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "log";
  for (const int error : {ENOLCK, EINVAL, ENOSYS}) {
    lock_error = error;
    const std::string message = refusal(file);
    lock_error = 0;
    CHECK_MESSAGE(
        message.find("to lock " + file.string() + ", got " + std::generic_category().message(error)) != message.npos,
        message);
  }
  lock_error = EWOULDBLOCK;
  CHECK(is_of_other_job(refusal(file)));
  lock_error = 0;
  CHECK(refusal(file).empty());
}
