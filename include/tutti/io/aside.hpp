// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <tutti/io/file.hpp>
#include <tutti/io/file_error.hpp>

// Temporary names in a file's own folder: ".tmp-<name>@<host>@<pid>.<count>". A writer fills a file of such a name and
// renames it to its final name when it is complete.
namespace tutti::io {

namespace detail {

[[nodiscard]] inline std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "host";
  std::string host = name;
  std::replace_if(
      host.begin(), host.end(), [](char c) { return c == '/' || c == '@'; }, '_');
  return host;
}

inline constexpr std::string_view aside_prefix = ".tmp-";

// Returns whether the writer of this entry no longer exists. On the same host the process id decides. Entries of this
// process are stale, because its own writers have returned when this is called. An entry of another host is stale if it
// has not changed for 24 hours.
[[nodiscard]] inline bool is_stale_aside(const std::filesystem::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  const auto second = name.rfind('@');
  if (!name.starts_with(aside_prefix) || second == std::string::npos || second == 0) return false;
  const auto first = name.rfind('@', second - 1);
  if (first == std::string::npos) return false;
  long pid = 0;
  const auto parsed = std::from_chars(name.data() + second + 1, name.data() + name.size(), pid);
  if (parsed.ec != std::errc() || pid <= 0 || *parsed.ptr != '.') return false;
  if (name.substr(first + 1, second - first - 1) == host_name())
    return pid == ::getpid() || (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH);
  std::error_code error;
  const auto changed = entry.last_write_time(error);
  return !error && std::filesystem::file_time_type::clock::now() - changed > std::chrono::hours(24);
}

}  // namespace detail

// Returns a name in the folder of `path` that no other thread, process or host uses.
[[nodiscard]] inline Path aside_path(const Path& path) {
  static std::atomic<std::uint64_t> count{0};
  return folder_of(path) / (std::string(detail::aside_prefix) + path.filename().string() + "@" + detail::host_name() +
                            "@" + std::to_string(::getpid()) + "." + std::to_string(count.fetch_add(1)));
}

// Removes the files of killed processes that were writing in this folder. Do not call this while another thread of this
// process writes there.
inline void remove_stale_asides(const Path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (detail::is_stale_aside(*it)) remove_tree(it->path());
  if (error) fail_file("list the folder", folder, error.value());
}

}  // namespace tutti::io
