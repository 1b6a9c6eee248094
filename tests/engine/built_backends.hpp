// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include <tutti/backends/make.hpp>

// Helpers for tests that run on all backends of this build.
namespace tutti::testing {

// Calls f(backend) for each processor backend of this build except the reference, each with two threads.
template <class F>
void on_processor_backends(F&& f) {
  BackendOptions o;
  o.threads = 2;
  for (const std::string& word : built_backends()) {
    if (word == "cuda" || word == "reference") continue;
    CAPTURE(word);
    f(*make_backend(word, o));
  }
}

// Returns the GPU's backend. If the machine has no GPU, prints a skip message and returns null. The names of test cases
// that call this function begin with "gpu: ".
[[nodiscard]] inline std::unique_ptr<Backend> gpu_backend(const BackendOptions& o = {}) {
  try {
    if (count_gpus() > 0) return make_backend("cuda", o);
    std::puts("SKIP: this build has no cuda backend");
  } catch (const DeviceError& e) {
    std::printf("SKIP: %s\n", e.what());
  }
  return nullptr;
}

}  // namespace tutti::testing
