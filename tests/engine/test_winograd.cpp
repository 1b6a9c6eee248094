// SPDX-License-Identifier: MIT
// Compares Winograd's convolution, and plain sums in f32, with sums in f64: every pass, f32 and bf16, each instruction
// set.
#include <tutti/engine/cpu/cpu.hpp>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/convolution_errors.hpp"

using namespace tutti;
using testing::ConvCase;
using testing::square_conv;
using testing::TrainingStep;

namespace {

// The ResNet layers that use Winograd's algorithm, and unusual layers: channels that do not fill a register, unequal
// tiles, one image.
std::vector<ConvCase> cases() {
  std::vector<ConvCase> c;
  const auto add = [&](std::int64_t rows, std::int64_t channels, std::int64_t size, std::int64_t out) {
    c.push_back(square_conv(std::to_string(channels) + "->" + std::to_string(out) + "@" + std::to_string(size), rows,
                            channels, size, out, 3, 1));
  };
  add(5, 16, 32, 16);
  add(9, 32, 16, 32);
  add(19, 64, 8, 64);
  add(3, 64, 32, 64);
  add(5, 128, 16, 128);
  add(9, 256, 8, 256);
  add(9, 512, 4, 512);
  add(1, 64, 56, 64);
  add(2, 128, 28, 128);
  add(5, 256, 14, 256);
  add(3, 512, 7, 512);
  add(3, 3, 32, 16);
  add(2, 17, 9, 24);
  add(7, 24, 5, 17);
  add(11, 64, 7, 32);
  add(1, 16, 3, 48);
  add(2, 257, 5, 272);
  c.push_back({"40->33@6x13", 4, 40, 6, 13, 33, {3, 3, 1, 1}});
  const auto add_strided = [&](std::int64_t rows, std::int64_t channels, std::int64_t h, std::int64_t w,
                               std::int64_t out) {
    c.push_back({std::to_string(channels) + "->" + std::to_string(out) + "@" + std::to_string(h) + "x" +
                     std::to_string(w) + "/2",
                 rows,
                 channels,
                 h,
                 w,
                 out,
                 {3, 3, 2, 1}});
  };
  add_strided(3, 16, 32, 32, 32);
  add_strided(5, 32, 16, 16, 64);
  add_strided(3, 64, 32, 32, 128);
  add_strided(7, 128, 16, 16, 256);
  add_strided(19, 256, 8, 8, 512);
  add_strided(1, 128, 56, 56, 128);
  add_strided(2, 256, 28, 28, 256);
  add_strided(5, 512, 14, 14, 512);
  add_strided(2, 17, 9, 10, 24);
  add_strided(3, 24, 5, 15, 17);
  add_strided(2, 3, 31, 7, 33);
  add_strided(5, 257, 3, 1, 272);
  return c;
}

class WinogradBackend final : public CpuBackend {
 public:
  explicit WinogradBackend(int threads, cpu::ConvolutionAlgorithm a = cpu::ConvolutionAlgorithm::winograd,
                           std::size_t chunk_bytes = 0)
      : CpuBackend({.threads = threads, .convolution = a, .choices = nullptr}),
        chunk_bytes_(chunk_bytes > 0 ? chunk_bytes : CpuBackend::chunk_bytes()) {}
  [[nodiscard]] std::size_t chunk_bytes() const override { return chunk_bytes_; }

 private:
  std::size_t chunk_bytes_;
};

using Algorithm = cpu::ConvolutionAlgorithm;

TrainingStep step_of(const ConvCase& c, DType t, int threads, Algorithm a = Algorithm::winograd,
                     std::size_t chunk_bytes = 0) {
  return TrainingStep(c, t, std::make_unique<WinogradBackend>(threads, a, chunk_bytes));
}

// Returns the instruction sets of this machine that have Winograd code for this type.
std::vector<const char*> instruction_sets(DType t) {
  std::vector<const char*> r;
  const testing::IsaGuard best("");
  const cpu::Isa here = cpu::detect_isa();
  for (const cpu::Isa isa : cpu::isas)
    if (isa <= here && isa != cpu::Isa::baseline && (t == DType::bf16 || !cpu::has_bf16(isa)))
      r.push_back(cpu::name_of(isa).data());
  if (r.empty()) std::puts("SKIP: this processor has no AVX2 and no NEON");
  return r;
}

void check_errors(DType precision) {
  const bool bf16 = precision == DType::bf16;
  for (const char* isa : instruction_sets(precision))
    for (const ConvCase& c : cases()) {
      const testing::IsaGuard guard(isa);
      const TrainingStep step = step_of(c, precision, 2);
      // With bf16, the results of the forward and the data pass are rounded to bf16 at the end; the gradients of
      // weights stay f32.
      const double most = bf16 ? 2e-3 : c.window.stride == 2 ? 1.2e-6 : 2.5e-6;
      testing::check_errors<op::Conv2d>(step, c, isa, "forward", most);
      testing::check_errors<op::Conv2dBackwardData>(step, c, isa, "data", most);
      testing::check_errors<op::Conv2dBackwardWeights>(step, c, isa, "weights", 2e-6);
    }
}

// Returns layers with few and with many weights: Winograd's algorithm uses a different schedule for each.
std::vector<ConvCase> two_schedules() {
  return {square_conv("shallow", 21, 32, 9, 24, 3, 1),
          square_conv("deep", 11, 256, 6, 272, 3, 1),
          {"shallow/2", 21, 32, 19, 10, 24, {3, 3, 2, 1}},
          {"deep/2", 11, 256, 11, 12, 272, {3, 3, 2, 1}}};
}

}  // namespace

TEST_CASE("errors relative to f64 are small, f32") { check_errors(DType::f32); }
TEST_CASE("errors relative to f64 are small, bf16") { check_errors(DType::bf16); }

TEST_CASE("convolutions with unusual shapes are computed by the direct algorithm") {
  for (const char* isa : instruction_sets(DType::bf16)) {
    const testing::IsaGuard guard(isa);
    WinogradBackend backend(2);
    testing::check_convolutions(backend, testing::odd_conv_cases());
  }
}

TEST_CASE("1, 2, 3 and 4 threads give the same bits") {
  for (const DType t : {DType::f32, DType::bf16})
    for (const char* isa : instruction_sets(t))
      for (const ConvCase& c : two_schedules()) {
        const testing::IsaGuard guard(isa);
        const TrainingStep one = step_of(c, t, 1);
        for (int threads = 2; threads <= 4; ++threads) {
          const TrainingStep more = step_of(c, t, threads);
          CHECK(one.result<op::Conv2d>() == more.result<op::Conv2d>());
          CHECK(one.result<op::Conv2dBackwardData>() == more.result<op::Conv2dBackwardData>());
          CHECK(one.result<op::Conv2dBackwardWeights>() == more.result<op::Conv2dBackwardWeights>());
        }
      }
}

TEST_CASE("outputs have the same bits for any number of rows in a chunk, with AVX2 and AVX-512") {
  const auto isas = instruction_sets(DType::f32);
  if (isas.empty()) return;
  for (const ConvCase& c : two_schedules()) {
    std::vector<double> first;
    for (const char* isa : isas)
      for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 30}) {
        const testing::IsaGuard guard(isa);
        const auto y = step_of(c, DType::f32, 2, Algorithm::winograd, bytes).result<op::Conv2d>();
        if (first.empty()) first = y;
        CHECK(y == first);
      }
  }
}

TEST_CASE("outputs have the same bits for any division of deep convolutions among threads") {
  const ConvCase c = square_conv("deep, in parts", 45, 512, 10, 128, 3, 1);
  for (const DType t : {DType::f32, DType::bf16})
    CHECK(step_of(c, t, 1).result<op::Conv2d>() == step_of(c, t, 6).result<op::Conv2d>());
}

TEST_CASE("outputs have the same bits if few tiles of a shard go through the weights with those of other shards") {
  const ConvCase c{"few/2", 32, 128, 16, 16, 256, {3, 3, 2, 1}};
  const TrainingStep alone = step_of(c, DType::f32, 1), together = step_of(c, DType::f32, 6);
  CHECK(alone.result<op::Conv2d>() == together.result<op::Conv2d>());
}

TEST_CASE("outputs have the same bits if weights are transformed in advance because several logical ranks read them") {
  for (const DType t : {DType::f32, DType::bf16})
    for (const char* isa : instruction_sets(t))
      for (const ConvCase& c :
           {square_conv("deep, one block", 8, 256, 4, 272, 3, 1), two_schedules()[1], two_schedules()[3]}) {
        const testing::IsaGuard guard(isa);
        auto backend = std::make_unique<WinogradBackend>(2);
        backend->reuse_weights();
        const TrainingStep once = step_of(c, t, 2), reused(c, t, std::move(backend));
        CHECK(once.result<op::Conv2d>() == reused.result<op::Conv2d>());
        CHECK(once.result<op::Conv2dBackwardData>() == reused.result<op::Conv2dBackwardData>());
        CHECK(once.result<op::Conv2dBackwardWeights>() == reused.result<op::Conv2dBackwardWeights>());
      }
}

TEST_CASE("without AVX2 the direct algorithm is used") {
  const testing::IsaGuard guard("baseline");
  const ConvCase c = two_schedules()[0];
  const TrainingStep direct = step_of(c, DType::f32, 2, Algorithm::direct), winograd = step_of(c, DType::f32, 2);
  CHECK(direct.result<op::Conv2d>() == winograd.result<op::Conv2d>());
  CHECK(direct.result<op::Conv2dBackwardData>() == winograd.result<op::Conv2dBackwardData>());
  CHECK(direct.result<op::Conv2dBackwardWeights>() == winograd.result<op::Conv2dBackwardWeights>());
}

TEST_CASE("whole nets give the same bits in every run and with any number of threads") {
  testing::check_determinism([](int threads) { return std::make_unique<WinogradBackend>(threads); });
}
