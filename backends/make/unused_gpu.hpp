// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

// The message of a program without the CUDA backend on a host with an NVIDIA GPU.
namespace tutti::detail {

// Returns the file that shows that the host has an NVIDIA GPU: "/dev/nvidia0", or the driver's entry below /proc.
// Returns an empty text if the host has no GPU. root: the folder that is used as /.
[[nodiscard]] inline std::string nvidia_gpu_of_host(const std::filesystem::path& root = "/") {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::string shown;
  const auto smallest = [&shown](const fs::path& p) {
    if (shown.empty() || p.string() < shown) shown = p.string();
  };
  const auto numbered = [](const std::string& name) {
    return name.starts_with("nvidia") && name.size() > 6 &&
           std::all_of(name.begin() + 6, name.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  for (fs::directory_iterator at(root / "dev", ignored), end; !ignored && at != end; at.increment(ignored))
    if (numbered(at->path().filename().string())) smallest(at->path());
  if (!shown.empty()) return shown;
  // The driver lists GPUs by bus address, even in a container without device files.
  for (fs::directory_iterator at(root / "proc/driver/nvidia/gpus", ignored), end; !ignored && at != end;
       at.increment(ignored))
    smallest(at->path());
  return shown;
}

// Returns the message for such a host. shown: the result of nvidia_gpu_of_host(). where: the option, for example
// "--backend".
[[nodiscard]] inline std::string unused_gpu(const std::string& where, const std::string& shown) {
  return where + " auto trains on the processor: this host has an NVIDIA GPU (" + shown +
         "), but this build has no CUDA backend. hint: build on a machine with the headers of CUDA and cuDNN "
         "(docs/reference/gpu.md), or set --gpus '' to train on the processor without this warning";
}

}  // namespace tutti::detail
