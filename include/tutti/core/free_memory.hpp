// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace tutti {

namespace detail {

// Returns the number after `key` in a file of "key number" lines, or -1 if the key is missing.
inline std::int64_t keyed_number(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return -1;
}
// Returns the single number in a file, or -1 if the file contains text such as "max".
inline std::int64_t lone_number(const std::string& path) {
  std::ifstream in(path);
  std::int64_t value = 0;
  return in >> value ? value : -1;
}

}  // namespace detail

// Returns the bytes that processes of this host can still allocate before anything is swapped or killed: the kernel's
// estimate, or the rest of the control group's limit if that is less. Returns the largest number if the system does not
// report it. `proc` and `cgroup` are the folders with the kernel's files (cgroup version 2).
[[nodiscard]] inline std::int64_t available_memory(const std::string& proc = "/proc",
                                                   const std::string& cgroup = "/sys/fs/cgroup") {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  if (const auto k = detail::keyed_number(proc + "/meminfo", "MemAvailable:"); k >= 0) bytes = k * 1024;
  std::ifstream in(proc + "/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("0::")) continue;
    // Every parent group may have a limit too.
    for (std::string path = line.substr(3);; path.erase(path.rfind('/'))) {
      const std::string at = cgroup + (path == "/" ? "" : path);
      const std::int64_t most = detail::lone_number(at + "/memory.max");
      const std::int64_t used = detail::lone_number(at + "/memory.current");
      const std::int64_t cached = std::max<std::int64_t>(detail::keyed_number(at + "/memory.stat", "inactive_file"), 0);
      if (most >= 0 && used >= 0) bytes = std::min(bytes, std::max<std::int64_t>(most - used + cached, 0));
      if (path.find('/') == std::string::npos || path == "/") break;
    }
  }
  return bytes;
}

// Returns the bytes of memory that this process holds now.
[[nodiscard]] inline std::int64_t resident_memory() {
  std::ifstream in("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  return in >> total >> resident ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace tutti
