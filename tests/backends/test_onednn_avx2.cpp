// SPDX-License-Identifier: MIT
// Tests the onednn backend without AVX-512. It is a separate program, because oneDNN detects the processor only once in
// a process.
#include <doctest/doctest.h>

#include <tutti/backends/onednn/onednn.hpp>
#include <tutti/backends/onednn/shim.hpp>

#include "engine/suite.hpp"

using namespace tutti;

TEST_CASE("the convolutions of ResNet-18 give the expected results on AVX2") {
  REQUIRE(dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2) == dnnl_success);
  const testing::IsaGuard guard("avx2");
  CHECK_FALSE(OnednnBackend::has_bf16());
  OnednnBackend backend({2, cpu::ConvolutionAlgorithm::direct});
  for (const testing::ConvCase& c : testing::convolutions_of(testing::resnet_cases()[2]))
    testing::check_case(backend, testing::op_case(c), DType::f32);
  const testing::OpCase small = testing::op_case(testing::square_conv("small", 2, 16, 5, 16, 3, 1));
  CHECK_THROWS_WITH_AS(testing::check_case(backend, small, DType::bf16), doctest::Contains("use --precision f32"),
                       DeviceError);
}
