// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <tutti/backends/cuda/library_folders.hpp>
#include <tutti/core/error.hpp>

namespace tutti::cuda {

// The major version of the CUDA with which the program is built, for example 13.
inline constexpr int cuda_major = CUDART_VERSION / 1000;

// One of CUDA's libraries, opened when one of its functions is first called. Therefore a program with this backend also
// starts on a machine without these libraries, and names a missing library when it needs the library.
class Library {
 public:
  // file: for example "libcudnn.so.9". package: the packages that contain it. companion: the prefix of the names of
  // libraries that this library opens by name. If it is found in a folder that the loader does not search, the
  // companions are opened from the same folder.
  // Search order: the folder that an archive of the programs contains, the loader's search, library_folders().
  Library(std::string file, std::string package, const std::string& companion = {},
          const LibraryPlaces& places = LibraryPlaces::of_process(cuda_major))
      : file_(std::move(file)), package_(std::move(package)) {
    if (const auto packaged = places.packaged(); !packaged.empty() && open(packaged, companion)) return;
    handle_ = ::dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return;
    if (why_.empty())
      if (const char* e = ::dlerror()) why_ = e;
    for (const auto& folder : library_folders(places))
      if (open(folder, companion)) return;
    if (const auto other = other_version(places); !other.empty()) why_ += "; " + other.string() + " is another version";
    package_ += "; tutti searches the loader's folders, $CUDA_HOME, $CUDA_PATH, " +
                (places.toolkits / "cuda").string() + "-" + std::to_string(places.major) + "* and in " +
                (places.toolkits / "cuda").string();
  }
  // Never closed: CUDA's libraries keep threads and memory of their own until the process ends.
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  [[nodiscard]] bool found() const noexcept { return handle_ != nullptr; }

  // Returns the function F with this name, or null if the library is missing or lacks it.
  template <class F>
  [[nodiscard]] F* find(const char* name) const noexcept {
    return handle_ == nullptr ? nullptr : reinterpret_cast<F*>(::dlsym(handle_, name));
  }
  // Returns the function F with this name. Throws DeviceError if the library is missing or lacks the function.
  template <class F>
  [[nodiscard]] F* function(const char* name) const {
    if (handle_ == nullptr)
      fail<DeviceError>("cuda", {"the library ", file_}, why_.empty() ? "no such file" : why_, {"install ", package_});
    void* const f = ::dlsym(handle_, name);
    if (f == nullptr)
      fail<DeviceError>("cuda", {"the function ", name, " in ", file_}, "a library without this function",
                        {"update ", package_});
    return reinterpret_cast<F*>(f);
  }

 private:
  // Opens the file in `folder` if it exists. If it cannot be opened, function() reports the reason, which is more
  // specific than the loader's "no such file".
  bool open(const std::filesystem::path& folder, const std::string& companion) {
    const std::filesystem::path place = folder / file_;
    std::error_code ignored;
    if (!std::filesystem::exists(place, ignored)) return false;
    handle_ = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
      if (const char* e = ::dlerror(); e != nullptr && !unusable_) why_ = e;
      unusable_ = true;
      return false;
    }
    if (!companion.empty()) open_companions(folder, companion);
    return true;
  }

  // Returns a file of this library with another version, for example libcudnn.so.8 for libcudnn.so.9, or an empty path.
  [[nodiscard]] std::filesystem::path other_version(const LibraryPlaces& places) const {
    const std::string stem = file_.substr(0, file_.find(".so") + 3) + ".";
    auto folders = library_folders(places);
    const auto searched = loader_folders(places);
    folders.insert(folders.begin(), searched.begin(), searched.end());
    for (const auto& folder : folders)
      for (const std::string& name : detail::names_in(folder))
        if (name.starts_with(stem) && !name.starts_with(file_)) return folder / name;
    return {};
  }

  // Opens companions in advance: when the library requests them by name, the loader returns the open ones. The library
  // reports a companion that cannot be opened.
  static void open_companions(const std::filesystem::path& folder, const std::string& companion) {
    for (const std::string& name : detail::names_in(folder))
      if (name.starts_with(companion)) (void)::dlopen((folder / name).c_str(), RTLD_NOW | RTLD_LOCAL);
  }

  std::string file_, package_, why_;
  void* handle_ = nullptr;
  bool unusable_ = false;  // a file existed and could not be opened
};

}  // namespace tutti::cuda

// Defines a function of a C header as a call into `library`, which is opened at that call. If TUTTI_CUDA_LINK_LIBRARIES
// is set, the program links CUDA's libraries itself, and this header defines no functions.
#define TUTTI_CUDA_FORWARD(library, result, name, parameters, ...)                \
  extern "C" [[gnu::visibility("hidden")]] inline result name parameters {        \
    static auto* const f = library().template function<result parameters>(#name); \
    return f(__VA_ARGS__);                                                        \
  }
