// SPDX-License-Identifier: MIT
// describe_device [NUMBER]: prints the description of a GPU that cuDNN needs to make plans for it on another machine,
// as one line of JSON. tests/backends/devices holds such lines for test_cudnn_plans.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <tutti/backends/cuda/cudnn/attributes.hpp>
#include <tutti/backends/cuda/cudnn/descriptor.hpp>
#include <tutti/backends/cuda/device.hpp>

namespace {

std::string description(int id) {
  namespace cudnn = tutti::cuda::cudnn;
  cudnn::Descriptor d(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "device description");
  d.set(cudnn::attr::device_id, id).finalize();
  return d.get_text(cudnn::attr::device_json);
}

}  // namespace

int main(int argc, char** argv) {
  const int id = argc > 1 ? std::atoi(argv[1]) : 0;
  try {
    tutti::cuda::require_device(id);
    std::printf("%s\n", description(id).c_str());
    return 0;
  } catch (const tutti::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_code();
  }
}
