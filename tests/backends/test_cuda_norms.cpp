// SPDX-License-Identifier: MIT
// Tests batch norms that run in one kernel, because the L2 cache holds their data, on an emulated GPU
// (cuda_emulator.hpp): results, the choice of the kernel, and launches that do not fit the GPU.
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "backends/emulated_cuda.hpp"
#include "engine/suite.hpp"

using namespace tutti;
using testing::Emulated;
using testing::no_emulator;

namespace {

emulator::Device& device() { return emulator::Device::instance(); }

// A device with a large L2 cache, whose compiler contracts nothing: otherwise two kernels with the same loops may
// differ in the last bit. The destructor restores the emulator's own device.
struct LargeCache {
  int cache = device().cache, together = device().cooperative, each = device().blocks_each;
  emulator::Contraction contraction = device().contraction;
  LargeCache() {
    device().cache = 1 << 24;
    device().contraction = emulator::Contraction::none;
  }
  ~LargeCache() {
    device().contraction = contraction;
    device().cache = cache;
    device().cooperative = together;
    device().blocks_each = each;
  }
  LargeCache(const LargeCache&) = delete;
  LargeCache& operator=(const LargeCache&) = delete;
};

// Returns how many kernels of batch norm were started since the last call: in one kernel, and in one for each pass.
std::pair<std::size_t, std::size_t> started() {
  std::pair<std::size_t, std::size_t> n{};
  for (const auto& [name, count] : std::exchange(device().kernels, {})) {
    if (name.starts_with("norm_once<") || name.starts_with("norm_backward_once<")) n.first += count;
    if (name.starts_with("norm_statistics<") || name.starts_with("norm_backward_sums<")) n.second += count;
  }
  return n;
}

// The rows of 11 images of 15x15 make several chunks, more than the blocks that run together.
std::vector<testing::NormCase> cases(std::int64_t channels) {
  std::vector<testing::NormCase> list;
  for (const bool relu : {false, true})
    for (const bool residual : {false, true})
      for (const bool twice : {false, true})
        list.push_back({std::to_string(channels), 11, channels, 15, 15, relu, residual, twice});
  return list;
}

std::vector<char> bytes_of(Executor& e, Backend& b) {
  std::vector<char> r(e.parameters().count * 4 + e.states().count * 4);
  b.memory().copy_out(r.data(), e.gradient_data(), e.parameters().count * 4);
  b.memory().copy_out(r.data() + e.parameters().count * 4, e.state_data(), e.states().count * 4);
  return r;
}
// Returns the gradients and the running statistics after a step.
std::vector<char> step(const testing::NormCase& c, DType t, bool graph = false) {
  Emulated backend(testing::emulated_options(graph));
  const Graph net = testing::op_case(c).graph();
  Executor e(backend, net, {t});
  testing::randomize(e, 3);
  const auto batch = testing::random_batch(net, c.rows, 3);
  for (int i = 0; i < (graph ? 3 : 1); ++i) (void)e.train(batch.view(), {1, 0.2});
  return bytes_of(e, backend);
}

}  // namespace

TEST_CASE("a batch norm in one kernel gives the expected results") {
  if (no_emulator()) return;
  const LargeCache cache;
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    Emulated backend(testing::emulated_options());
    (void)started();
    for (const auto& c : cases(24)) testing::check_case(backend, testing::op_case(c), t);
    const auto [once, separate] = started();
    // Each case has a second batch norm, with relu. In f32 there is no such kernel for masks, and in no type for a
    // residual without relu or for two gradients.
    CHECK(once == 16 + (t == DType::f32 ? 6 : 10));
    CHECK(separate == 32 - once);
  }
}

TEST_CASE("a batch norm in one kernel has the bits of its passes in separate kernels, also in a captured step") {
  if (no_emulator()) return;
  for (const DType t : {DType::f32, DType::bf16})
    for (const bool relu : {false, true}) {
      const testing::NormCase c{"", 11, 48, 15, 15, relu, relu};
      const auto of = [&](int cache, bool graph) {
        const LargeCache large;
        if (cache == 0) device().cache = 0;
        (void)started();
        auto r = step(c, t, graph);
        CHECK((started().first > 0) == (cache > 0));
        return r;
      };
      CHECK(of(1, false) == of(0, false));
      CHECK(of(1, true) == of(0, true));
    }
}

TEST_CASE("a batch norm has a kernel for each pass if the GPU cannot run its blocks at the same time") {
  if (no_emulator()) return;
  const LargeCache cache;
  const testing::NormCase c{"", 3, 16, 9, 9, true, false};
  (void)started();
  const auto want = step(c, DType::bf16);
  CHECK(started() == std::pair<std::size_t, std::size_t>(4, 0));
  device().blocks_each = 0;
  CHECK(step(c, DType::bf16) == want);
  CHECK(started() == std::pair<std::size_t, std::size_t>(0, 4));
  device().blocks_each = 2;
  device().cooperative = 0;
  CHECK(step(c, DType::bf16) == want);
  CHECK(started() == std::pair<std::size_t, std::size_t>(0, 4));
  device().cooperative = 1;
  device().cache = 3 * 81 * 16 * 2 * 2;  // for the forward pass: x and y
  CHECK(step(c, DType::bf16) == want);
  CHECK(started() == std::pair<std::size_t, std::size_t>(2, 2));
}

TEST_CASE("a batch norm has a kernel for each pass if ranks share the GPU's steps with NCCL") {
  if (no_emulator()) return;
  const LargeCache cache;
  Emulated backend(testing::emulated_options());
  backend.device().share_steps(2);
  (void)started();
  testing::check_case(backend, testing::op_case(cases(8)[0]), DType::bf16);
  CHECK(started() == std::pair<std::size_t, std::size_t>(0, 4));
}
