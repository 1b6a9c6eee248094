// SPDX-License-Identifier: MIT
// Tests tutti's own vector kernels with every instruction set that this machine has.
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/cpu/row_kernels.hpp>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/engine/executor.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/layers.hpp>

#include "engine/suite.hpp"

using namespace tutti;

namespace {

// Returns the instruction sets to test: each one that TUTTI_ISA can request here, and "" for the default.
std::vector<const char*> instruction_sets() {
  std::vector<const char*> r;
  const testing::IsaGuard best("");
  const cpu::Isa here = cpu::detect_isa();
  for (cpu::Isa isa : cpu::isas) {
    if (cpu::has_bf16(isa)) continue;  // the default, if the processor has it
    if (isa <= here)
      r.push_back(cpu::name_of(isa).data());
    else
      MESSAGE("this processor has no " << cpu::name_of(isa));
  }
  r.push_back("");
  return r;
}

template <class F>
void each_isa(F&& f) {
  for (const char* isa : instruction_sets()) {
    const testing::IsaGuard guard(isa);
    CpuBackend backend({2});
    CAPTURE(backend.description());
    f(backend);
  }
}

// A forward convolution that stores its output rows in the partial results of the shards, as one contiguous region. In
// the finish phase each task writes all rows of its share of the channels to the output.
class LateConvolution final : public Kernel {
 public:
  static constexpr int tasks = 3;
  LateConvolution(std::unique_ptr<Kernel> loop, const NodeDesc& d) : loop_(std::move(loop)), d_(d) {}
  Partition cut() override {
    const std::int64_t rows = (d_.rows + d_.shards - 1) / d_.shards;
    return {Division::reduce, tasks, static_cast<std::size_t>(rows) * d_.out[0].row_bytes(), true};
  }
  void run(Call& c) override {
    if (c.phase == Phase::reduce) {
      Call rows = c;
      rows.phase = Phase::whole;
      rows.out[0].data = c.partial - static_cast<std::size_t>(c.shard) * c.partial_stride +
                         static_cast<std::size_t>(c.first_row) * d_.out[0].row_bytes();
      return loop_->run(rows);
    }
    REQUIRE(c.phase == Phase::finish);
    REQUIRE(c.tasks == tasks);
    REQUIRE(c.out[0].shape[0] == c.count_rows);
    const auto channels = static_cast<std::size_t>(d_.out[0].shape[1]);
    const auto* from = reinterpret_cast<const float*>(c.partial);
    const auto to = c.out[0].view<float>();
    for (std::size_t i = 0; i < to.size(); ++i)
      if (static_cast<int>(i % channels % tasks) == c.task) to[i] = from[i];
  }

 private:
  std::unique_ptr<Kernel> loop_;
  NodeDesc d_;
};

class LateBackend final : public CpuBackend {
 public:
  explicit LateBackend(bool late)
      : CpuBackend({.threads = 2, .convolution = cpu::ConvolutionAlgorithm::direct}), late_(late) {}
  std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& d) override {
    auto loop = CpuBackend::kernel(op, d);
    if (!late_ || !std::holds_alternative<op::Conv2d>(op)) return loop;
    ++count;
    return std::make_unique<LateConvolution>(std::move(loop), d);
  }
  std::size_t chunk_bytes() const override { return 1; }
  int count = 0;

 private:
  bool late_;
};

}  // namespace

TEST_CASE("TUTTI_ISA selects an older instruction set, but none that the processor does not have") {
  // The tests may run with TUTTI_ISA set to an older instruction set.
  const bool lesser = std::getenv("TUTTI_ISA") != nullptr;
  const cpu::Isa here = cpu::detect_isa();
  {
    const testing::IsaGuard guard("baseline");
    CHECK(cpu::detect_isa() == cpu::Isa::baseline);
    CHECK(CpuBackend({1}).description().find("baseline") != std::string::npos);
  }
  {
    const testing::IsaGuard guard("");
    CHECK(cpu::detect_isa() >= here);
    if (!lesser) CHECK(cpu::detect_isa() == here);
  }
  CHECK(cpu::detect_isa() == here);
#if defined(__aarch64__)
  const char* const foreign = "avx2";
#else
  const char* const foreign = "neon";
#endif
  for (const char* unknown : {"avx3", foreign}) {
    const testing::IsaGuard guard(unknown);
    CHECK_THROWS_WITH_AS(
        CpuBackend({1}),
        doctest::Contains("[environment TUTTI_ISA] expected an instruction set of this processor: baseline"),
        UsageError);
  }
}

TEST_CASE("all ops except convolutions give the expected results in f32") {
  each_isa([](CpuBackend& backend) { testing::check_other_ops(backend, DType::f32); });
}
TEST_CASE("all ops except convolutions give the expected results in bf16") {
  each_isa([](CpuBackend& backend) { testing::check_other_ops(backend, DType::bf16); });
}
TEST_CASE("convolutions in groups give the expected results") {
  each_isa([](CpuBackend& backend) {
    testing::check_convolutions(backend, testing::grouped_conv_cases());
    for (const testing::OpCase& c : testing::blur_cases())
      for (const DType t : {DType::f32, DType::bf16}) testing::check_case(backend, c, t);
  });
}
TEST_CASE("f64 is refused when the plan is made") {
  CpuBackend backend({2});
  testing::check_no_f64(backend);
}
TEST_CASE("weight updates, norms, averages and accumulation give the expected results") {
  each_isa([](CpuBackend& backend) { testing::check_updates(backend); });
}

TEST_CASE("the conversions of sums of logical ranks give the bits of the reference") {
  each_isa([](CpuBackend& backend) { testing::check_integer_passes(backend); });
}

TEST_CASE("with a fixed division, results do not depend on the number of threads") {
  testing::check_fixed_division([](int n) { return std::make_unique<CpuBackend>(CpuOptions{n}); }, {1, 5});
}
TEST_CASE("with a fixed division, 16 threads have the results of one" * doctest::test_suite("nightly")) {
  testing::check_fixed_division([](int n) { return std::make_unique<CpuBackend>(CpuOptions{n}); }, {1, 16});
}

TEST_CASE("the facts on which bits depend name the instruction set and the algorithm of convolutions") {
  const auto fact = [](const Backend& b, const std::string& name) {
    for (const BitFact& f : b.bits_depend_on())
      if (f.name == name) return f.value;
    return std::string("none");
  };
  const testing::IsaGuard guard("baseline");
  const CpuBackend b({1}), direct({1, cpu::ConvolutionAlgorithm::direct});
  CHECK(fact(b, "backend") == "cpu");
  CHECK(fact(b, "tutti") == version);
  CHECK(fact(b, "instruction set") == "baseline");
  CHECK(fact(b, "convolution") == "auto");
  CHECK(fact(direct, "convolution") == "direct");
  CHECK(fact(b, "compiler") != "none");
  CHECK(b.bits_depend_on() == CpuBackend({2}).bits_depend_on());
  CHECK(b.bits_depend_on() != direct.bits_depend_on());
}
TEST_CASE("the loss and its gradient have the expected values") {
  each_isa([](CpuBackend& backend) { testing::check_loss(backend); });
}
TEST_CASE("losses with two labels for a row, and of each class for itself, have the expected values") {
  each_isa([](CpuBackend& backend) {
    testing::check_mixed_loss(backend);
    for (const testing::OpCase& c : testing::loss_cases())
      for (const DType t : {DType::f32, DType::bf16}) testing::check_case(backend, c, t);
  });
}
TEST_CASE("gelu is right at known values, far from zero and for NaN") {
  each_isa([](CpuBackend& backend) { testing::check_gelu(backend); });
}
TEST_CASE("a NaN in the weights makes the loss NaN") {
  each_isa([](CpuBackend& backend) { testing::check_nan_is_not_lost(backend); });
}
TEST_CASE("bf16 is rounded equally on every instruction set") {
  // Adds random pairs of bf16 values and stores the sums as vectors. Denormal values are left out, because avx512_bf16
  // treats them differently.
  Builder b(1, 1, 1);
  std::vector<bf16> x, y, sum;
  Rng r(1, Purpose::user);
  for (int i = 0; i < 40000; ++i) {
    const auto random = [&] { return bf16::from_bits(static_cast<std::uint16_t>(r.next())); };
    const bf16 p = random(), q = random();
    const float s = static_cast<float>(p) + static_cast<float>(q);
    if (std::fabs(static_cast<float>(p)) < 1e-30F || std::fabs(static_cast<float>(q)) < 1e-30F || std::fabs(s) < 1e-30F)
      continue;
    x.push_back(p);
    y.push_back(q);
  }
  sum.resize(x.size());
  each_isa([&](CpuBackend& backend) {
    cpu::add<bf16>(backend.isa(), static_cast<const bf16*>(x.data()), static_cast<const bf16*>(y.data()), sum.data(),
                   static_cast<std::int64_t>(x.size()));
    int wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bf16 expected(static_cast<float>(x[i]) + static_cast<float>(y[i]));
      const bool nan = std::isnan(static_cast<float>(expected));
      wrong += nan ? !std::isnan(static_cast<float>(sum[i])) : sum[i].bits != expected.bits;
    }
    CHECK(wrong == 0);
  });
}
TEST_CASE("results do not depend on the number of threads") {
  testing::check_determinism([](int threads) { return std::make_unique<CpuBackend>(CpuOptions{threads}); }, 3, 8);
}
TEST_CASE("keep_all changes only the addresses of values") {
  CpuBackend backend({2});
  testing::check_keep_all(backend, 3, 8);
}

TEST_CASE("layers that use the reference loops are listed by name") {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 4}));
  x = b.bias("bias1", x, b.parameter("bias1.bias", {4}, {Init::zeros}));
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  CpuBackend cpu;
  Executor on_cpu(cpu, b.graph());
  // Only backends that inherit from CpuBackend implement convolutions.
  CHECK(on_cpu.fallbacks(2) == std::vector<std::string>{"conv2d (conv1)", "conv2d_backward_weights (conv1)"});
  ReferenceBackend reference;
  Executor on_reference(reference, b.graph());
  CHECK(on_reference.fallbacks(2).empty());
}

TEST_CASE("weight gradients that are finished in tasks have the same bits as with one call") {
  Builder b(3, 8, 8);
  models::resnet_cifar(b, b.normalize({120, 120, 120}, {1 / 60.F, 1 / 60.F, 1 / 60.F}),
                       {.depth = 8, .classes = 3, .width = 8});
  const testing::Batch batch = testing::random_batch(b.graph(), 19, 5);
  LateBackend whole(false), late(true);
  const auto trained = [&](Backend& backend) {
    Executor e(backend, b.graph(), {DType::f32});
    testing::randomize(e, 3);
    e.train(batch.view(), {});
    const auto* g = static_cast<const float*>(e.gradient_data());
    return std::vector<float>(g, g + e.parameters().count);
  };
  const std::vector<float> expected = trained(whole);
  CHECK(trained(late) == expected);
  CHECK(late.count == 9);
}
