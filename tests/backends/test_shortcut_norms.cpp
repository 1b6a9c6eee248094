// SPDX-License-Identifier: MIT
// Tests the two batch norms of y = relu(norm(x) + norm(s)) on an emulated GPU (cuda_emulator.hpp): together they have
// the bits of two separate norms; and when they run separately.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/nn/layers.hpp>

#include "backends/emulated_cuda.hpp"
#include "backends/fusing_convolutions.hpp"
#include "engine/suite.hpp"

using namespace tutti;
using testing::Emulated;
using testing::FusingConvolutions;
using testing::no_emulator;

namespace {

using Fusing = cuda::BasicCudaBackend<FusingConvolutions, testing::LoopGemms>;

emulator::Device& device() { return emulator::Device::instance(); }

// Sets what decides how the norms run, and restores the emulator's own device.
struct With {
  int cache = device().cache, each = device().blocks_each;
  With(int bytes, bool runs_once) {
    device().cache = bytes;
    if (!runs_once) device().blocks_each = 0;
  }
  ~With() {
    device().cache = cache;
    device().blocks_each = each;
  }
  With(const With&) = delete;
  With& operator=(const With&) = delete;
};

struct Case {
  std::int64_t rows, channels, size;
  bool second;  // two ops read the block's output, so that its gradient has two parts
};

// A stem, a block with a convolution in its shortcut, and with `second` a block without one.
Graph net_of(const Case& c) {
  Builder b(3, c.size, c.size);
  ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  x = nn::conv_bn(b, "stem", "bn", x, {.out = 8}, {.relu = true});
  const ValueId s = nn::conv_bn(b, "down", "down_bn", x, {.out = c.channels, .kernel = 1, .stride = 2}, {.eps = 1e-3F});
  x = nn::conv_bn(b, "conv", "conv_bn", x, {.out = c.channels, .stride = 2}, {.relu = true, .residual = s});
  if (c.second)
    x = nn::conv_bn(b, "next", "next_bn", x, {.out = c.channels, .kernel = 1}, {.relu = true, .residual = x});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 5, {}));
  return std::move(b).take();
}

// Odd sizes: one and several chunks of rows, lanes without channels, and more channels than the lanes of a block.
const std::vector<Case> cases{
    {5, 24, 7, true}, {3, 8, 5, false}, {2, 264, 5, true}, {11, 40, 17, true}, {9, 16, 19, false}};

// Numbers of kernels of batch norm that were started since the last call.
struct Started {
  std::size_t forward = 0, backward = 0;  // for two norms together
  std::size_t once = 0;                   // for all passes of a norm
  std::size_t applied = 0;                // for the last pass of one norm, forward or backward
};
Started started() {
  Started n;
  for (const auto& [name, count] : std::exchange(device().kernels, {})) {
    if (name.starts_with("norm_apply_shortcut<")) n.forward += count;
    if (name.starts_with("norm_backward_apply_shortcut<")) n.backward += count;
    if (name.starts_with("norm_once<") || name.starts_with("norm_backward_once<")) n.once += count;
    if (name.starts_with("norm_apply<") || name.starts_with("norm_backward_apply<")) n.applied += count;
  }
  return n;
}

// Returns the bytes of the gradients and of the running statistics after steps with a backend, and the losses.
template <class B>
std::pair<std::vector<std::byte>, std::vector<double>> step(B& backend, const Case& c, DType t, int steps = 1) {
  const Graph net = net_of(c);
  Executor e(backend, net, {t});
  testing::randomize(e, 7);
  const auto batch = testing::random_batch(net, c.rows, 7);
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) losses.push_back(e.train(batch.view(), {1, 0.2}).loss);
  auto bytes = testing::fetch(backend, e.gradient_data(), e.parameters().bytes());
  const auto states = testing::fetch(backend, e.state_data(), e.states().bytes());
  bytes.insert(bytes.end(), states.begin(), states.end());
  losses.push_back(e.evaluate(batch.view()).loss);
  return {bytes, losses};
}
auto step(const Case& c, DType t, bool graph = false, int steps = 1) {
  Emulated backend(testing::emulated_options(graph));
  return step(backend, c, t, steps);
}

void check_bits(DType t) {
  if (no_emulator()) return;
  for (const Case& c : cases) {
    INFO(name_of(t) << " " << c.rows << " " << c.channels << " " << c.size);
    const auto together = [&] {
      const With none(0, true);
      return step(c, t);
    };
    const auto separate = [&] {
      const With fits(1 << 24, false);
      return step(c, t);
    };
    (void)started();
    const auto got = together();
    CHECK(started().forward == 1);
    const auto want = separate();
    const Started n = started();
    CHECK(n.forward + n.backward + n.once == 0);
    CHECK(got == want);
  }
}

}  // namespace

TEST_CASE("two batch norms together give the expected results") {
  if (no_emulator()) return;
  const With none(0, true);
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const Case& c : {cases[0], cases[1]}) {
      Emulated backend(testing::emulated_options());
      (void)started();
      const testing::Comparison r = testing::check_model(backend, net_of(c), c.rows, t);
      CHECK_MESSAGE(r.failures.empty(), name_of(t) << ":\n" << r.text());
      CHECK(backend.fused_layers().shortcuts == std::vector<std::string>{"down_bn"});
      const Started n = started();
      CHECK(n.forward == 1);
      CHECK(n.backward == (t == DType::f32 ? 0 : 1));
    }
}

TEST_CASE("two batch norms together have the bits of two separate norms in bf16") { check_bits(DType::bf16); }
TEST_CASE("two batch norms together have the bits of two separate norms in f16") { check_bits(DType::f16); }
TEST_CASE("two batch norms together have the bits of two separate norms in f32") { check_bits(DType::f32); }

TEST_CASE("captured steps with two batch norms together give the same bits") {
  if (no_emulator()) return;
  const With none(0, true);
  for (const DType t : {DType::f32, DType::bf16}) CHECK(step(cases[0], t, true, 3) == step(cases[0], t, false, 3));
}

TEST_CASE("the two batch norms stay separate in the cache, with logical ranks, and their gradients in f32") {
  if (no_emulator()) return;
  const Case c = cases[0];
  const auto of = [&](int cache, DType t, bool fixed, int ranks = 1) {
    const With with(cache, true);
    Emulated backend(testing::emulated_options());
    if (fixed) backend.fix_division();
    if (ranks > 1) backend.device().share_steps(ranks);
    (void)started();
    (void)step(backend, c, t);
    return started();
  };
  Started n = of(1 << 24, DType::bf16, false);
  CHECK(n.forward + n.backward == 0);
  CHECK(n.once == 7);  // all but the gradient of the stem, which has two parts
  // The cache holds the shortcut's norm, but not the norm that adds it, nor a gradient.
  const int tensor = 5 * 4 * 4 * 24 * 2;
  n = of(2 * tensor, DType::bf16, false);
  CHECK(n.forward == 0);
  CHECK(n.backward == 1);
  n = of(2 * tensor - 1, DType::bf16, false);
  CHECK(n.forward == 1);
  n = of(3 * tensor, DType::bf16, false);
  CHECK(n.backward == 0);
  n = of(0, DType::bf16, true);
  CHECK(n.forward + n.backward + n.once == 0);
  CHECK(n.applied == 12);  // forward, backward and in the evaluation
  n = of(0, DType::f32, false);
  CHECK(n.forward == 1);
  CHECK(n.backward == 0);
  // With several ranks no norm runs in one kernel.
  n = of(1 << 24, DType::bf16, false, 2);
  CHECK(n.forward == 1);
  CHECK(n.backward == 1);
  CHECK(n.once == 0);
}

TEST_CASE("the two batch norms use the library if autotuning finds its kernels for both faster") {
  if (no_emulator()) return;
  const With none(0, true);
  CudaOptions o = testing::emulated_options();
  o.autotune = true;
  for (const bool faster : {false, true}) {
    FusingConvolutions::reset();
    FusingConvolutions::norm_is_faster = faster;
    Fusing backend(o);
    const testing::Comparison r = testing::check_model(backend, net_of(cases[0]), cases[0].rows, DType::f32);
    CHECK_MESSAGE(r.failures.empty(), r.text());
    (void)started();
    FusingConvolutions::norms = 0;
    (void)step(backend, cases[0], DType::f32);
    const Started n = started();
    // In the trial, and in the step if it was no slower.
    CHECK(n.forward == (faster ? 1 : 2));
    CHECK(FusingConvolutions::norms == (faster ? 4 + 4 : 4));
  }
  // Convolutions that compute the sums of the norms leave nothing to join.
  FusingConvolutions::reset();
  o.fusion = CudaFusion::on;
  Fusing fused(o);
  (void)started();
  (void)step(fused, cases[0], DType::bf16);
  CHECK(fused.fused_layers().shortcuts.empty());
  CHECK(started().forward == 0);
}
