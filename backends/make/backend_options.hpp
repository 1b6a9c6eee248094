// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace tutti {

struct BackendOptions {              // options of make_backend()
  int threads = 0;                   // for the CPU; 0: this process's share of the host's cores
  std::string convolution = "auto";  // for the CPU: "auto", "direct", "winograd" or "tune"
  bool gpu = true;                   // whether "auto" may select a GPU
  bool bf16 = false;                 // whether "auto" must select a backend that computes in bf16 on this processor
  std::optional<int> device;         // number of the GPU as in nvidia-smi -L; empty: local rank k uses GPU k
  std::optional<bool> tf32;          // as in CudaOptions, and so are these:
  std::optional<bool> autotune;
  bool deterministic = false, recompute = false;
  bool graph = true;
  std::string fusion = "auto";         // "auto", "on" or "off", as in CudaFusion
  std::string where = "make_backend";  // what errors name, for example the option with the name
  // Called with the reason if "auto" does not use a GPU of the host, and with the results of the convolution "tune".
  std::function<void(const std::string&)> warn = [](const std::string& w) { std::fprintf(stderr, "%s\n", w.c_str()); };
};

}  // namespace tutti
