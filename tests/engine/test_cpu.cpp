// SPDX-License-Identifier: MIT
// Our own vector kernels, for every instruction set that this machine has.
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/cpu/row_kernels.hpp>

#include <string>
#include <vector>

#include <tutti/engine/executor.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/nn/layers.hpp>

#include "engine/suite.hpp"

using namespace tutti;

namespace {

// The instruction sets to test: each that can be asked for, and what is picked without asking.
std::vector<const char*> instruction_sets() {
  std::vector<const char*> r;
  const testing::IsaGuard best("");
  const cpu::Isa here = cpu::detect_isa();
  for (cpu::Isa isa : {cpu::Isa::baseline, cpu::Isa::avx2, cpu::Isa::avx512})
    if (isa <= here)
      r.push_back(cpu::name_of(isa).data());
    else
      MESSAGE("this processor has no " << cpu::name_of(isa));
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

}  // namespace

TEST_CASE("TUTTI_ISA picks a lesser instruction set, and only that") {
  const cpu::Isa here = cpu::detect_isa();
  {
    const testing::IsaGuard guard("baseline");
    CHECK(cpu::detect_isa() == cpu::Isa::baseline);
    CHECK(CpuBackend({1}).description().find("baseline") != std::string::npos);
  }
  {
    const testing::IsaGuard guard("");
    CHECK(cpu::detect_isa() == here);
  }
  const testing::IsaGuard guard("avx3");
  CHECK_THROWS_WITH_AS(
      CpuBackend({1}),
      doctest::Contains("[environment TUTTI_ISA] expected an instruction set of this processor: baseline"), UsageError);
}

TEST_CASE("the case table but convolutions, f32") {
  each_isa([](CpuBackend& backend) { testing::check_other_ops(backend, DType::f32); });
}
TEST_CASE("the case table but convolutions, bf16") {
  each_isa([](CpuBackend& backend) { testing::check_other_ops(backend, DType::bf16); });
}
TEST_CASE("f64 is refused when the plan is made") {
  CpuBackend backend({2});
  testing::check_no_f64(backend);
}
TEST_CASE("updates, norms, average, accumulation") {
  each_isa([](CpuBackend& backend) { testing::check_updates(backend); });
}
TEST_CASE("the loss") {
  each_isa([](CpuBackend& backend) { testing::check_loss(backend); });
}
TEST_CASE("gelu: known values, far from zero, NaN") {
  each_isa([](CpuBackend& backend) { testing::check_gelu(backend); });
}
TEST_CASE("NaN is not lost") {
  each_isa([](CpuBackend& backend) { testing::check_nan_is_not_lost(backend); });
}
TEST_CASE("bf16 is rounded alike on every instruction set") {
  // x + x through the vector store: every bf16 and the sums between them. What avx512_bf16 does to denormals is its
  // own.
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
TEST_CASE("determinism") {
  testing::check_determinism([](int threads) { return std::make_unique<CpuBackend>(CpuOptions{threads}); }, 3, 8);
}
TEST_CASE("keep_all changes nothing but places") {
  CpuBackend backend({2});
  testing::check_keep_all(backend, 3, 8);
}

TEST_CASE("what the reference loops serve on a backend is named, with its layer") {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 4}));
  x = b.bias("bias1", x, b.parameter("bias1.bias", {4}, {Init::zeros}));
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  CpuBackend cpu;
  Executor on_cpu(cpu, b.graph());
  // Convolutions are for the backends that inherit from it.
  CHECK(on_cpu.fallbacks(2) == std::vector<std::string>{"conv2d (conv1)", "conv2d_backward_weights (conv1)"});
  ReferenceBackend reference;
  Executor on_reference(reference, b.graph());
  CHECK(on_reference.fallbacks(2).empty());
}
