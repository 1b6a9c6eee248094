// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace tutti {

struct BackendOptions {              // what make_backend() can be told
  int threads = 0;                   // of a backend on the processor; 0: this process's share of the host's cores
  std::string convolution = "auto";  // of one on the processor: or "direct", "winograd", "tune"
  bool gpu = true;                   // whether "auto" may take one
  std::optional<int> device;         // as nvidia-smi -L counts; nothing: the process of local rank k takes the k-th
  bool tf32 = false, deterministic = false, autotune = false, recompute = false;  // as CudaOptions has them
  bool graph = true;
  std::string fusion = "auto";         // or "on", "off"; see CudaFusion
  std::string where = "make_backend";  // what errors name, such as the option that the word comes from
  // Called with the reason if "auto" does not take a GPU that the host has, and with what convolution "tune" chose.
  std::function<void(const std::string&)> warn = [](const std::string& w) { std::fprintf(stderr, "%s\n", w.c_str()); };
};

}  // namespace tutti
