// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include <tutti/core/free_memory.hpp>

#include "data/temp_folder.hpp"

using namespace tutti;

namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("available memory is limited by the kernel and by every control group that contains the process") {
  const test::TempFolder folder;
  const auto proc = folder.path() / "proc", cgroup = folder.path() / "cgroup";
  const auto available = [&] { return available_memory(proc.string(), cgroup.string()); };
  CHECK(available() == std::numeric_limits<std::int64_t>::max());
  write(proc / "meminfo", "MemTotal: 16000 kB\nMemFree: 10 kB\nMemAvailable:   12000 kB\n");
  CHECK(available() == 12000 * 1024);
  write(proc / "self/cgroup", "0::/a/b\n");
  CHECK(available() == 12000 * 1024);
  write(cgroup / "a/b/memory.max", "max\n");
  write(cgroup / "a/b/memory.current", "5000\n");
  CHECK(available() == 12000 * 1024);
  write(cgroup / "a/b/memory.max", "8000\n");
  CHECK(available() == 3000);
  write(cgroup / "a/b/memory.stat", "anon 1\ninactive_file 500\n");
  CHECK(available() == 3500);
  write(cgroup / "a/memory.max", "9000\n");
  write(cgroup / "a/memory.current", "9100\n");
  CHECK(available() == 0);
  write(proc / "self/cgroup", "5:memory:/x\n0::/\n");
  CHECK(available() == 12000 * 1024);
}

TEST_CASE("the available memory of this machine and this process is greater than zero") {
  CHECK(available_memory() > 0);
  CHECK(resident_memory() > 100'000);
}
