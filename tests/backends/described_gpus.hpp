// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/backends/cuda/api/nvrtc.hpp>
#include <tutti/backends/cuda/cudnn/plan.hpp>

#include <doctest/doctest.h>

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/io/file.hpp>

// GPUs of which only a description exists (tests/backends/devices), for tests of cuDNN's plans. A stand-in replaces the
// driver, so these tests use no GPU.
namespace tutti::testing {

inline std::string description_of(const std::string& gpu) {
  return io::read_text_file(std::filesystem::path(TUTTI_SOURCE_DIR) / "tests/backends/devices" / (gpu + ".json"),
                            1 << 20);
}
inline const cuda::cudnn::Target& target_of(const std::string& gpu) {
  static std::map<std::string, cuda::cudnn::Target> targets;
  const auto at = targets.find(gpu);
  return at != targets.end() ? at->second
                             : targets.try_emplace(gpu, std::string_view(description_of(gpu))).first->second;
}

// Loads the stand-in driver. If cuDNN has already searched for a driver, prints a skip and returns true.
inline bool no_stand_in() {
  static const bool late = [] {
    if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr) return true;
    if (::dlopen(TUTTI_STAND_IN, RTLD_NOW | RTLD_GLOBAL) == nullptr) FAIL(std::string(::dlerror()));
    // Keeps NVRTC open: otherwise cuDNN opens and closes it, over 100 MB, for every plan, which takes ten times as long
    // as the plan itself.
    REQUIRE(cuda::nvrtc_library().found());
    return false;
  }();
  if (late) std::puts("SKIP: this process has loaded a CUDA driver already");
  return late;
}

// Returns at most one plan, as the backend makes it. A fusion may not use cuDNN's fallback engines.
inline std::vector<cuda::cudnn::Plan> plans_for(const std::string& gpu, cuda::cudnn::OpGraph& graph,
                                                cuda::cudnn::Refusal& refusal, bool fusion,
                                                const cuda::cudnn::EngineFilter& filter = {}) {
  constexpr std::size_t workspace_limit = std::size_t{1} << 30;
  return cuda::cudnn::make_plans(target_of(gpu), graph, filter, workspace_limit, 1, refusal, fusion);
}

}  // namespace tutti::testing

// Without a device, every cuDNN engine leaks a few bytes of cuBLASLt.
extern "C" [[gnu::used]] inline const char*
__lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier): the sanitizer's
  return "leak:libcublasLt.so\n";
}
