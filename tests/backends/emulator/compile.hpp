// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tutti::emulator {

// Returns a folder that only this process and the processes that it forks use.
[[nodiscard]] std::filesystem::path folder();

// A program for NVRTC, compiled by the C++ compiler.
struct Program {
  std::string source, name;
  std::vector<std::string> kernels, symbols;
  std::string log, machine_code;  // machine_code: the shared objects' paths, one line each: without contraction, and
                                  // with it

  bool build();
};
// Returns true if the architecture for which kernels are compiled has an instruction that waits for earlier kernels.
[[nodiscard]] bool has_early_kernels();
// Returns true if the processor has instructions that multiply and add.
[[nodiscard]] bool contracts();

}  // namespace tutti::emulator
