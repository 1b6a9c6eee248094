// SPDX-License-Identifier: MIT
// Tests in which folders the CUDA backend searches for NVRTC, cuBLASLt, cuDNN and NCCL. Uses folders that look like
// toolkits and archives, with a stand-in library (stand_in_toolkit.cpp).
#include <tutti/backends/cuda/library.hpp>

#include <doctest/doctest.h>

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <vector>

#include "data/temp_folder.hpp"

using namespace tutti;
using cuda::LibraryPlaces;

namespace {

const std::string file = "libtutti-toolkit-test.so.1";

// Returns folders below `root` only, without the folders of this machine.
LibraryPlaces places_in(const std::filesystem::path& root, int major) {
  LibraryPlaces p;
  p.major = major;
  p.toolkits = root / "usr local";
  p.system.clear();
  return p;
}
std::filesystem::path put(const std::filesystem::path& folder, const std::string& name = file) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(TUTTI_STAND_IN, folder / name);
  return folder / name;
}
// Returns the library file that is opened from these folders, or an empty path.
std::filesystem::path opened(const LibraryPlaces& places, const std::string& companion = {}) {
  const cuda::Library l(file, "nothing", companion, places);
  if (!l.found()) return {};
  auto* const f = l.function<int()>("tutti_toolkit_answer");
  CHECK(f() == 42);
  Dl_info info{};
  REQUIRE(::dladdr(reinterpret_cast<void*>(f), &info) != 0);
  return info.dli_fname;
}

}  // namespace

TEST_CASE("only toolkits with the build's major version are used, the newest minor version first") {
  const test::TempFolder folder;
  const LibraryPlaces places = places_in(folder.path(), 12);
  CHECK(opened(places).empty());
  // Adds one folder at a time, from the worst to the best: the search always prefers the last one.
  for (const char* toolkit :
       {"cuda/lib", "cuda/lib64", "cuda-12/lib64", "cuda-12.4/lib64", "cuda-12.9/targets/x86_64-linux/lib",
        "cuda-12.9/lib", "cuda-12.9/lib64", "cuda-12.10/targets/sbsa-linux/lib", "cuda-12.10/lib64"}) {
    CAPTURE(toolkit);
    const auto placed = put(places.toolkits / toolkit);
    CHECK(opened(places) == placed);
  }
  // The search ignores other major versions than 12.
  for (const char* toolkit : {"cuda-13.0/lib64", "cuda-1.2/lib64", "cuda-120/lib64", "cuda-x/lib64", "cudax-12/lib64"})
    put(places.toolkits / toolkit);
  CHECK(opened(places) == places.toolkits / "cuda-12.10/lib64" / file);
  CHECK(opened(places_in(folder.path(), 13)) == places.toolkits / "cuda-13.0/lib64" / file);
}

TEST_CASE(
    "libraries are searched in an archive first, then in toolkits of the environment, then in those of the system") {
  const test::TempFolder folder;
  LibraryPlaces places = places_in(folder.path(), 13);
  put(places.toolkits / "cuda-13.2/lib64");
  places.homes = {folder / "first home", folder / "second"};
  const auto second = put(folder / "second" / "lib");
  CHECK(opened(places) == second);
  const auto first = put(folder / "first home" / "targets" / "x86_64-linux" / "lib");
  CHECK(opened(places) == first);
  places.program = folder / "an archive" / "bin";
  CHECK(opened(places) == first);
  const auto packaged = put(folder / "an archive" / "lib" / "tutti" / "cuda");
  CHECK(opened(places) == packaged);
}

TEST_CASE("if a library opens other libraries by name, they are opened from its folder") {
  const test::TempFolder folder;
  const LibraryPlaces places = places_in(folder.path(), 12);
  put(places.toolkits / "cuda-12.9/lib64");
  const auto companion = put(places.toolkits / "cuda-12.9/lib64", "libtutti-companion.so.12.9");
  put(places.toolkits / "cuda-12.9/lib64", "libtutti-other.so.12.9");
  (void)opened(places, "libtutti-companion.so.");
  const auto is_open = [](const std::filesystem::path& p) {
    return ::dlopen(p.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr;
  };
  CHECK(is_open(companion));
  CHECK_FALSE(is_open(companion.parent_path() / "libtutti-other.so.12.9"));
}

TEST_CASE("a library file that cannot be opened is skipped, and the error reports it if no other file can be opened") {
  const test::TempFolder folder;
  const LibraryPlaces places = places_in(folder.path(), 12);
  const auto bad = places.toolkits / "cuda-12.9/lib64" / file;
  test::write_text(bad, "no library");
  try {
    (void)cuda::Library(file, "the package of it", {}, places).function<void()>("f");
    FAIL("found");
  } catch (const DeviceError& e) {
    const std::string text = e.what();
    CAPTURE(text);
    CHECK(text.starts_with("[cuda] expected the library " + file + ", got " + bad.string() + ": "));
    CHECK(text.find("hint: install the package of it; tutti searches the loader's folders, $CUDA_HOME, "
                    "$CUDA_PATH, " +
                    (places.toolkits / "cuda-12*").string() + " and in " + (places.toolkits / "cuda").string()) !=
          std::string::npos);
  }
  const auto older = put(places.toolkits / "cuda-12.4/lib64");
  CHECK(opened(places) == older);
}

TEST_CASE("a library of another major version is not opened, and the error names it") {
  const test::TempFolder folder;
  LibraryPlaces places = places_in(folder.path(), 12);
  places.system = {folder / "system"};
  const auto message = [&] {
    try {
      (void)cuda::Library(file, "the package of it", {}, places).function<void()>("f");
    } catch (const DeviceError& e) {
      CHECK(e.exit_code() == 4);
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(message().find("another version") == std::string::npos);
  put(places.toolkits / "cuda-12.9/lib64", "libtutti-toolkit-test-other.so.2");
  CHECK(message().find("another version") == std::string::npos);
  const auto newer = put(places.toolkits / "cuda-12.9/lib64", "libtutti-toolkit-test.so.2");
  CHECK(message().find("; " + newer.string() +
                       " is another version. hint: install the package of it; tutti searches") != std::string::npos);
  const auto of_system = put(folder / "system", "libtutti-toolkit-test.so.3.1");
  CHECK(message().find("; " + of_system.string() + " is another version") != std::string::npos);
}

TEST_CASE("a process searches libraries next to its program, and in the toolkits of the environment and the system") {
  const LibraryPlaces places = LibraryPlaces::of_process(cuda::cuda_major);
  CHECK(places.major == CUDART_VERSION / 1000);
  CHECK(places.program == std::filesystem::read_symlink("/proc/self/exe").parent_path());
  CHECK(places.toolkits == "/usr/local");
  CHECK(places.packaged() == places.program.parent_path() / "lib/tutti/cuda");
  CHECK(LibraryPlaces{}.packaged().empty());
}
