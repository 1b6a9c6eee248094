// SPDX-License-Identifier: MIT
// Tests direct 3x3 convolutions that compute products of bf16 pairs. Compares the results with sums in f64: every pass
// that has code, channels that do not fill a register, unequal tiles, and both strides.
#include <tutti/engine/cpu/cpu.hpp>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <tutti/engine/cpu/pairs/pairs_ops.hpp>
#include <tutti/engine/kernel_table.hpp>

#include "engine/convolution_errors.hpp"

using namespace tutti;
using testing::ConvCase;
using testing::square_conv;
using testing::TrainingStep;
namespace pairs = tutti::cpu::pairs;

namespace {

// A backend that uses the code for pairs wherever it exists, even if it is slow.
class PairsBackend final : public CpuBackend {
 public:
  explicit PairsBackend(int threads, std::size_t chunk_bytes = 0)
      : CpuBackend({.threads = threads}), chunk_bytes_(chunk_bytes > 0 ? chunk_bytes : CpuBackend::chunk_bytes()) {}
  [[nodiscard]] std::size_t chunk_bytes() const override { return chunk_bytes_; }
  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override {
    if (pairs::follows(pairs::has_code, isa(), op, desc))
      return KernelTable<pairs::Conv2d, pairs::Conv2dBackwardData, pairs::Conv2dBackwardWeights>::make(op, shared(),
                                                                                                       desc);
    return CpuBackend::kernel(op, desc);
  }

 private:
  std::size_t chunk_bytes_;
};

TrainingStep step_of(const ConvCase& c, int threads, std::size_t chunk_bytes = 0) {
  return TrainingStep(c, DType::bf16, std::make_unique<PairsBackend>(threads, chunk_bytes));
}

bool has_code() {
  const pairs::Problem any{{3, 3, 1, 1}, 16, 16};
  if (pairs::has_code(cpu::detect_isa(), pairs::Pass::forward, any)) return true;
  std::puts("SKIP: no products of pairs on this processor, or by this compiler");
  return false;
}

std::vector<ConvCase> cases() {
  std::vector<ConvCase> c;
  for (const int stride : {1, 2}) {
    const auto add = [&](std::int64_t rows, std::int64_t channels, std::int64_t size, std::int64_t out) {
      c.push_back(square_conv(std::to_string(channels) + "->" + std::to_string(out) + "@" + std::to_string(size) +
                                  " s" + std::to_string(stride),
                              rows, channels, size, out, 3, stride));
    };
    add(9, 16, 32, 16);
    add(9, 16, 32, 32);
    add(9, 32, 16, 32);
    add(5, 64, 8, 64);
    add(3, 64, 56, 64);
    add(3, 3, 32, 16);
    add(2, 17, 9, 24);
    add(7, 24, 5, 17);
    add(11, 1, 7, 33);
    add(1, 16, 3, 48);
    add(5, 8, 1, 8);
    add(5, 8, 2, 8);
    c.push_back({"40->33@6x13", 4, 40, 6, 13, 33, {3, 3, stride, 1}});
    c.push_back({"5->1@13x6", 4, 5, 13, 6, 1, {3, 3, stride, 1}});
  }
  return c;
}

std::vector<ConvCase> both_strides() {
  return {square_conv("stride 1", 21, 16, 19, 24, 3, 1), square_conv("stride 2", 21, 24, 19, 16, 3, 2)};
}

}  // namespace

TEST_CASE("errors relative to f64 are small") {
  if (!has_code()) return;
  for (const ConvCase& c : cases()) {
    const TrainingStep step = step_of(c, 2);
    // The results of the forward and the data pass are rounded to bf16 at the end; the gradients of weights stay f32.
    if (c.window.stride == 1) {
      testing::check_errors<op::Conv2d>(step, c, "avx512_bf16", "forward", 2.2e-3);
      testing::check_errors<op::Conv2dBackwardData>(step, c, "avx512_bf16", "data", 2.2e-3);
    }
    testing::check_errors<op::Conv2dBackwardWeights>(step, c, "avx512_bf16", "weights", 2e-6);
  }
}

TEST_CASE("1, 2, 3 and 4 threads give the same bits") {
  if (!has_code()) return;
  for (const ConvCase& c : both_strides()) {
    const TrainingStep one = step_of(c, 1);
    for (int threads = 2; threads <= 4; ++threads) {
      const TrainingStep more = step_of(c, threads);
      CHECK(one.result<op::Conv2d>() == more.result<op::Conv2d>());
      CHECK(one.result<op::Conv2dBackwardData>() == more.result<op::Conv2dBackwardData>());
      CHECK(one.result<op::Conv2dBackwardWeights>() == more.result<op::Conv2dBackwardWeights>());
    }
  }
}

TEST_CASE("outputs have the same bits for any number of rows in a chunk") {
  if (!has_code()) return;
  for (const ConvCase& c : both_strides())
    CHECK(step_of(c, 2, 1).result<op::Conv2d>() == step_of(c, 2, std::size_t{1} << 30).result<op::Conv2d>());
}

TEST_CASE("on instruction sets without the pairs algorithm, another algorithm is used") {
  const testing::IsaGuard guard("baseline");
  PairsBackend backend(2);
  testing::check_convolutions(backend, testing::odd_conv_cases());
}

TEST_CASE("convolutions with unusual shapes use another algorithm") {
  PairsBackend backend(2);
  testing::check_convolutions(backend, testing::odd_conv_cases());
}

TEST_CASE("whole nets give the same bits in every run and with any number of threads") {
  testing::check_determinism([](int threads) { return std::make_unique<PairsBackend>(threads); });
}
