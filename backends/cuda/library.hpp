// SPDX-License-Identifier: MIT
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti::cuda {

// One of CUDA's libraries, opened when the first of its functions is called: a program with this backend starts on
// machines that have none of them, and says which one it lacks when it needs it.
class Library {
 public:
  // file: "libcudnn.so.9"; package: what to install for it. companion: how the names of libraries begin that this one
  // opens by name; where it was found in a folder that the loader does not search, they are opened there first.
  Library(std::string file, std::string package, const std::string& companion = {})
      : file_(std::move(file)), package_(std::move(package)) {
    std::vector<std::string> places{file_};
    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
      if (const char* root = std::getenv(variable); root != nullptr && *root != 0)
        for (const char* folder : {"/lib64/", "/lib/"}) places.push_back(root + std::string(folder) + file_);
    for (const char* folder : {"/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"}) places.push_back(folder + file_);
    for (const std::string& place : places) {
      handle_ = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) {
        if (place != file_ && !companion.empty()) open_companions(place, companion);
        return;
      }
      // The first reason is the loader's own search, which finds what is installed.
      if (why_.empty())
        if (const char* e = ::dlerror()) why_ = e;
    }
  }
  // Never closed: CUDA's libraries hold threads and memory of their own until the process ends.
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  [[nodiscard]] bool found() const noexcept { return handle_ != nullptr; }

  // The function F of this name. DeviceError: no such library, or one that lacks it.
  template <class F>
  [[nodiscard]] F* function(const char* name) const {
    if (handle_ == nullptr)
      fail<DeviceError>("cuda", "the library " + file_, why_.empty() ? "none" : why_, "install " + package_);
    void* const f = ::dlsym(handle_, name);
    if (f == nullptr)
      fail<DeviceError>("cuda", "the function " + std::string(name) + " in " + file_, "a library without it",
                        "update " + package_);
    return reinterpret_cast<F*>(f);
  }

 private:
  // The loader takes an open library for any that is asked for by the same name. What does not open is missed later, by
  // who needs it.
  static void open_companions(const std::filesystem::path& place, const std::string& companion) {
    std::error_code ignored;
    for (const auto& e : std::filesystem::directory_iterator(place.parent_path(), ignored)) {
      const std::string name = e.path().filename();
      if (name.starts_with(companion)) (void)::dlopen(e.path().c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }

  std::string file_, package_, why_;
  void* handle_ = nullptr;
};

}  // namespace tutti::cuda

// Defines a function of a C header as a call into `library`, which is opened then. TUTTI_CUDA_LINK_LIBRARIES: the
// program links CUDA's libraries itself, and nothing is defined.
#define TUTTI_CUDA_FORWARD(library, result, name, parameters, ...)                \
  extern "C" [[gnu::visibility("hidden")]] inline result name parameters {        \
    static auto* const f = library().template function<result parameters>(#name); \
    return f(__VA_ARGS__);                                                        \
  }
