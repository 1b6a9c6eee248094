// SPDX-License-Identifier: MIT
// Compares an emulated GPU (backends/cuda_emulator.hpp) with PyTorch's numbers. Tests tutti's kernels, and that the
// comparison reads a device's memory correctly.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <doctest/doctest.h>

#include "backends/cuda_emulator.hpp"
#include "backends/emulated_cuda.hpp"
#include "resnet8.hpp"

using namespace tutti;

TEST_CASE("resnet8: emulated GPU") {
  if (testing::no_emulator()) return;
  testing::Emulated backend(testing::emulated_options());
  golden::check_resnet8(backend, DType::f32, golden::in_f32);
  golden::check_resnet8(backend, DType::bf16, golden::in_16_bits);
  golden::check_resnet8(backend, DType::f16, golden::in_16_bits);
}
