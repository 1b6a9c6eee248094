// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

// The folders in which NVRTC, cuBLASLt, cuDNN and NCCL are searched, in addition to the loader's search.
namespace tutti::cuda {

// The places from which the folders are derived. Tests pass trees of their own.
struct LibraryPlaces {
  int major = 0;                             // major version of the build's CUDA; 0: no folders cuda-<major>
  std::filesystem::path program;             // the folder of the program, empty if unknown
  std::vector<std::filesystem::path> homes;  // toolkits that the environment names
  std::filesystem::path toolkits = "/usr/local";
  // Folders of the dynamic loader, in which libraries of another version are searched for messages.
  std::vector<std::filesystem::path> system{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"};

  // Returns the places of this process: $CUDA_HOME and $CUDA_PATH name toolkits.
  [[nodiscard]] static LibraryPlaces of_process(int major) {
    LibraryPlaces p;
    p.major = major;
    std::error_code e;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", e);
    if (!e) p.program = self.parent_path();
    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
      if (const char* root = std::getenv(variable); root != nullptr && *root != 0) p.homes.emplace_back(root);
    return p;
  }

  // Returns the folder of the libraries that an archive of the programs contains, or an empty path if the program's
  // folder is unknown.
  [[nodiscard]] std::filesystem::path packaged() const {
    return program.empty() ? std::filesystem::path() : program.parent_path() / "lib" / "tutti" / "cuda";
  }
};

namespace detail {

// Returns {12, 9} for "12.9" and for "12.9-old", and an empty list if the text does not begin with a number.
[[nodiscard]] inline std::vector<int> version_numbers(std::string_view text) {
  std::vector<int> numbers;
  while (!text.empty()) {
    int n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || n < 0) break;
    numbers.push_back(n);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.starts_with('.')) break;
    text.remove_prefix(1);
  }
  return numbers;
}

// Returns the sorted names in a folder; an empty list if it cannot be read.
[[nodiscard]] inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code e;
  for (std::filesystem::directory_iterator at(folder, e), end; !e && at != end; at.increment(e))
    names.push_back(at->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Appends the folders of a toolkit that may hold libraries.
inline void add_toolkit(std::vector<std::filesystem::path>& list, const std::filesystem::path& root) {
  list.push_back(root / "lib64");
  list.push_back(root / "lib");
  for (const std::string& target : names_in(root / "targets")) list.push_back(root / "targets" / target / "lib");
}

}  // namespace detail

// Returns the folders of $LD_LIBRARY_PATH and of the system.
[[nodiscard]] inline std::vector<std::filesystem::path> loader_folders(const LibraryPlaces& places) {
  std::vector<std::filesystem::path> list;
  const char* const variable = std::getenv("LD_LIBRARY_PATH");
  for (std::string_view rest = variable != nullptr ? variable : ""; !rest.empty();) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) list.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  list.insert(list.end(), places.system.begin(), places.system.end());
  return list;
}

// Returns the folders of toolkits in the order in which they are tried: toolkits of the environment;
// `toolkits`/cuda-<major>*, the newest minor version first; `toolkits`/cuda. Some of the folders may not exist.
[[nodiscard]] inline std::vector<std::filesystem::path> library_folders(const LibraryPlaces& places) {
  std::vector<std::filesystem::path> list;
  for (const auto& root : places.homes) detail::add_toolkit(list, root);
  std::vector<std::pair<std::vector<int>, std::string>> versions;
  for (const std::string& name : detail::names_in(places.toolkits)) {
    constexpr std::string_view prefix = "cuda-";
    if (!name.starts_with(prefix)) continue;
    auto numbers = detail::version_numbers(std::string_view(name).substr(prefix.size()));
    if (!numbers.empty() && numbers[0] == places.major) versions.emplace_back(std::move(numbers), name);
  }
  std::stable_sort(versions.begin(), versions.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& version : versions) detail::add_toolkit(list, places.toolkits / version.second);
  detail::add_toolkit(list, places.toolkits / "cuda");
  return list;
}

}  // namespace tutti::cuda
