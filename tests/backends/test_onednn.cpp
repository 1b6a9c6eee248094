// SPDX-License-Identifier: MIT
// takes long
#include <tutti/backends/onednn/convolution.hpp>
#include <tutti/backends/onednn/onednn.hpp>

#include "engine/suite.hpp"

using namespace tutti;

TEST_CASE("the convolutions of ResNet give the expected results") {
  OnednnBackend backend({2});
  testing::check_convolutions(backend, testing::resnet_conv_cases());
}
TEST_CASE("convolutions with unusual shapes give the expected results") {
  OnednnBackend backend({2});
  testing::check_convolutions(backend, testing::odd_conv_cases());
}
TEST_CASE("convolutions in groups give the expected results") {
  OnednnBackend backend({2});
  testing::check_convolutions(backend, testing::grouped_conv_cases());
}
TEST_CASE("all ops except convolutions give the expected results") {
  OnednnBackend backend({2});
  testing::check_other_ops(backend, DType::f32);
  if (OnednnBackend::has_bf16()) testing::check_other_ops(backend, DType::bf16);
}
TEST_CASE("convolutions with tutti's baseline kernels give the expected results") {
  const testing::IsaGuard guard("baseline");
  OnednnBackend backend({2});
  testing::check_convolutions(backend, {testing::square_conv("small", 19, 16, 32, 16, 3, 1)});
}
TEST_CASE("every op of whole nets gives the expected results") {
  OnednnBackend backend({2});
  testing::check_models(backend);
}
TEST_CASE("fast kernels are found") {
  CHECK(onednn::has_fast_convolution());
  CHECK(onednn::is_scalar("gemm:ref"));
  CHECK_FALSE(onednn::is_scalar("jit_1x1:avx2"));
}
TEST_CASE("f64 is refused when the plan is made") {
  OnednnBackend backend({2});
  testing::check_no_f64(backend);
}
TEST_CASE("the loss and its gradient have the expected values") {
  OnednnBackend backend({2});
  testing::check_loss(backend);
}
TEST_CASE("gelu is right at known values, far from zero and for NaN") {
  OnednnBackend backend({2});
  testing::check_gelu(backend);
}
TEST_CASE("a NaN in the weights makes the loss NaN") {
  OnednnBackend backend({2});
  testing::check_nan_is_not_lost(backend);
}
TEST_CASE("results do not depend on the number of threads") {
  testing::check_determinism([](int threads) { return std::make_unique<OnednnBackend>(CpuOptions{threads}); });
}
TEST_CASE("keep_all changes only the addresses of values") {
  OnednnBackend backend({2});
  testing::check_keep_all(backend);
}
TEST_CASE("the conversions of sums of logical ranks give the bits of the reference") {
  OnednnBackend backend({2});
  testing::check_integer_passes(backend);
}
TEST_CASE("with a fixed division, results do not depend on the number of threads") {
  testing::check_fixed_division([](int n) { return std::make_unique<OnednnBackend>(CpuOptions{n}); },
                                {1, 4, 5, 16, 64});
}
TEST_CASE("the facts on which bits depend name the caches, by which oneDNN chooses") {
  const OnednnBackend backend({2});
  std::string names;
  for (const BitFact& f : backend.bits_depend_on()) names += f.name + ": " + f.value + "\n";
  CAPTURE(names);
  CHECK(names.find("libraries: oneDNN ") != std::string::npos);
  CHECK(names.find("oneDNN's instruction set: ") != std::string::npos);
  CHECK(names.find("caches: ") != std::string::npos);
}
