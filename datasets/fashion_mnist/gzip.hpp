// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti::fashion_mnist {

// Unpacks a file with the program gzip, as the prepare script does, and returns at most `most` bytes. `where` is the
// name of the file in messages. Throws DataError if gzip refuses the file or warns, if the result is longer, or if gzip
// is not installed.
[[nodiscard]] inline std::vector<std::uint8_t> read_gzip(const std::filesystem::path& path, std::size_t most,
                                                         std::string_view where) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail<DataError>(where, "a pipe to gzip", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string program = "gzip", unpack = "-dc", end_of_options = "--", file = path.string();
  const std::array<char*, 5> words{program.data(), unpack.data(), end_of_options.data(), file.data(), nullptr};
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, "gzip", &actions, nullptr, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (error != 0) {
    ::close(ends[0]);
    fail<DataError>(where, "the program gzip to unpack it", std::strerror(error),
                    "install gzip, or run datasets/fashion_mnist/prepare --out DIR on a host with gzip");
  }

  std::vector<std::uint8_t> data;
  std::vector<std::uint8_t> piece(std::size_t{1} << 18);
  ssize_t n = 1;
  while (n != 0 && data.size() <= most) {
    n = ::read(ends[0], piece.data(), piece.size());
    if (n > 0) data.insert(data.end(), piece.begin(), piece.begin() + n);
    if (n < 0 && errno != EINTR) break;
  }
  ::close(ends[0]);  // ends a gzip that still writes
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (data.size() > most) fail<DataError>(where, {"at most ", most, " bytes unpacked"}, "more");
  if (n != 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    fail<DataError>(where, "a complete gzip file", "a file that gzip cannot unpack",
                    "the gzip data is damaged, fetch the file again");
  return data;
}

}  // namespace tutti::fashion_mnist
