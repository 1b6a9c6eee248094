// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

// The key file of a job: a secret that only its processes know, from which each derives its keys. It contains 64
// hexadecimal digits and the end of the line, and is a regular file that only its owner may read.
namespace tutti {

inline constexpr std::size_t key_digits = 64;

// Returns a secret for the processes of a job: 256 bits as hexadecimal digits.
[[nodiscard]] inline std::string new_secret() {
  std::array<unsigned char, key_digits / 2> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != ssize_t{bytes.size()})
    fail<Error>("job", "random numbers of the system", "an error of getrandom()");
  std::string text;
  for (const unsigned char b : bytes) {
    text += "0123456789abcdef"[b >> 4U];
    text += "0123456789abcdef"[b & 15U];
  }
  return text;
}

// Returns the secret in the text of a key file, in lower case. where: its name in messages. Throws UsageError with the
// reason, and with no part of the text.
[[nodiscard]] inline std::string parse_key(std::string_view text, const std::string& where) {
  for (const char c : {'\n', '\r'})
    if (text.ends_with(c)) text.remove_suffix(1);
  std::string secret;
  for (const char c : text) {
    const bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'), capital = c >= 'A' && c <= 'F';
    if (!digit && !capital)
      fail<UsageError>(where, {key_digits, " hexadecimal digits"},
                       {"another character after ", secret.size(), " of them"}, "openssl rand -hex 32 makes one");
    secret += capital ? static_cast<char>(c - 'A' + 'a') : c;
  }
  if (secret.size() != key_digits)
    fail<UsageError>(where, {key_digits, " hexadecimal digits"}, secret.size(), "openssl rand -hex 32 makes one");
  return secret;
}

// Reads the key file `path`. where: the option that names it. Throws UsageError if it does not exist, if it is not a
// regular file (links are refused too), or if users other than its owner may read or write it.
[[nodiscard]] inline std::string read_key_file(const io::Path& path, const std::string& where) {
  const std::string mode = "a file of mode 0600";
  int fd = -1;
  do fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  while (fd < 0 && errno == EINTR);
  if (fd < 0)
    fail<UsageError>(where, mode,
                     {path.native(), ": ", (errno == ELOOP ? "a link" : std::generic_category().message(errno))},
                     errno == ELOOP ? "give the path of the file itself" : "");
  const io::Descriptor file(fd);
  struct stat status {};
  if (::fstat(fd, &status) != 0) io::fail_file("examine", path, errno);
  if (!S_ISREG(status.st_mode))
    fail<UsageError>(where, mode, {path.native(), ": ", (S_ISDIR(status.st_mode) ? "a folder" : "not a regular file")});
  if ((status.st_mode & 0177) != 0) {
    std::string octal;
    for (unsigned m = status.st_mode & 07777U, digit = 4; digit-- > 0;)
      octal += static_cast<char>('0' + (m >> 3 * digit & 7U));
    fail<UsageError>(where, {mode, ", readable by its owner only"}, {path.native(), ": mode ", octal},
                     {"chmod 600 ", path.native()});
  }
  std::array<char, key_digits + 3> text{};
  ssize_t n = -1;
  do n = ::read(fd, text.data(), text.size());
  while (n < 0 && errno == EINTR);
  if (n < 0) io::fail_file("read", path, errno);
  return parse_key({text.data(), static_cast<std::size_t>(n)}, where + " " + path.string());
}

}  // namespace tutti
