// SPDX-License-Identifier: MIT
// describe_device [NUMBER]: prints the description of a GPU that cuDNN needs to make plans for it on another machine,
// as one line of JSON. tests/backends/devices holds such lines for test_cudnn_plans.
#include <cstdio>
#include <cstdlib>

#include <tutti/backends/cuda/cudnn/plan.hpp>
#include <tutti/backends/cuda/device.hpp>

int main(int argc, char** argv) {
  const int id = argc > 1 ? std::atoi(argv[1]) : 0;
  try {
    tutti::cuda::require_device(id);
    std::printf("%s\n", tutti::cuda::cudnn::describe_device(id).c_str());
    return 0;
  } catch (const tutti::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_code();
  }
}
