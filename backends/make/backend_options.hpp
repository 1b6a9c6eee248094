// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace tutti {

struct BackendOptions {              // options of make_backend()
  int threads = 0;                   // for the processor; 0: this process's share of the host's cores
  std::string convolution = "auto";  // for the processor: "auto", "direct", "winograd" or "tune"
  bool gpu = true;                   // whether "auto" may select a GPU
  std::optional<int> device;         // number as in nvidia-smi -L; empty: the process with local rank k uses the k-th
  bool tf32 = false, deterministic = false, autotune = false, recompute = false;  // as in CudaOptions
  bool graph = true;
  std::string fusion = "auto";         // or "on", "off"; see CudaFusion
  std::string where = "make_backend";  // what errors name, for example the option that holds the name
  // Called with the reason if "auto" does not use a GPU that the host has, and with the choice of convolution "tune".
  std::function<void(const std::string&)> warn = [](const std::string& w) { std::fprintf(stderr, "%s\n", w.c_str()); };
};

}  // namespace tutti
