// SPDX-License-Identifier: MIT
// takes long
// Counts the sectors of memory for which the warps of our kernels ask in training steps (emulator/sectors.hpp), with
// the kernels as NVRTC compiles them. A kernel that reads or writes neighbouring values with lanes that are not
// neighbours asks for more sectors than it needs.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/nn/activations.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/emulated_cuda.hpp"
#include "backends/emulator/sectors.hpp"
#include "backends/ptx_kernels.hpp"
#include "engine/conformance.hpp"

using namespace tutti;
using emulator::SectorCount;
using emulator::Sectors;

namespace {

// The emulator reads it at the first kernel.
const int from_ptx = ::setenv("TUTTI_EMULATOR", "ptx", 1);

bool skipped() {
  REQUIRE(from_ptx == 0);
  if (testing::no_emulator()) return true;
  const std::string script = "python3 '" TUTTI_SOURCE_DIR "/tests/backends/emulator/ptx_nvrtc.py'";
  return std::system(("TUTTI_BUILD_DIR='" TUTTI_BUILD_DIR "' " + script).c_str()) != 0;  // it prints a line "SKIP: "
}

// The channels, strides and ops of ResNet-50's beginning, with small images: a stem, and a bottleneck with and one
// without a convolution in its shortcut.
Graph resnet_part() {
  Builder b(3, 32, 32);
  ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 64, .kernel = 7, .stride = 2}, {.relu = true});
  x = b.max_pool("pool", x, {3, 3, 2, 1});
  for (const char* name : {"a", "b"}) {
    const std::string n = name;
    const ValueId shortcut = n == "b" ? x : nn::conv_bn(b, n + ".conv0", n + ".bn0", x, {.out = 256, .kernel = 1}, {});
    x = nn::conv_bn(b, n + ".conv1", n + ".bn1", x, {.out = 64, .kernel = 1}, {.relu = true});
    x = nn::conv_bn(b, n + ".conv2", n + ".bn2", x, {.out = 64}, {.relu = true});
    x = nn::conv_bn(b, n + ".conv3", n + ".bn3", x, {.out = 256, .kernel = 1}, {.relu = true, .residual = shortcut});
  }
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("mean", x), 1000, {Init::normal, 0.1}));
  return std::move(b).take();
}
// The first ops of cifar_fast, and a block of ResNet-20 with a convolution in its shortcut.
Graph cifar_part() {
  Builder b(3, 32, 32);
  ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  x = nn::conv(b, "white", x, {.out = 24, .kernel = 2, .padding = 0, .bias = true});
  x = b.gelu("gelu", x);
  x = b.max_pool("pool", nn::conv(b, "conv1", x, {.out = 64}), {2, 2, 2, 0});
  x = b.gelu("gelu1", nn::batch_norm(b, "bn1", x, {}));
  x = nn::conv_bn(b, "conv2", "bn2", x, {.out = 16, .kernel = 1}, {.relu = true});
  const ValueId shortcut = nn::conv_bn(b, "conv4", "bn4", x, {.out = 16, .kernel = 1}, {});
  x = nn::conv_bn(b, "conv3", "bn3", x, {.out = 16}, {.relu = true, .residual = shortcut});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("mean", x), 10, {Init::normal, 0.1}));
  return std::move(b).take();
}

using Counts = std::map<std::string, SectorCount>;

// Counts the first step of a net. cache: bytes of the L2 cache, which decides whether a batch norm is one kernel.
void count_step(const Graph& net, const TrainerOptions& o, int cache) {
  auto& device = emulator::Device::instance();
  const int before = std::exchange(device.cache, cache);
  {
    testing::Emulated backend(testing::emulated_options());
    Solo solo;
    Trainer t(backend, solo, net, o);
    const auto batch = testing::random_batch(net, 4, 1);
    const BatchView view = batch.view();
    t.step({&view, 1}, 4, 0.01);
    device.finish();
  }
  device.cache = before;
}
Counts count_steps(DType type) {
  Sectors::instance().begin();
  for (int turn = 0; turn < 3; ++turn) {
    TrainerOptions o;
    o.optimizer = Sgd{0.9, true};
    o.compute = type;
    o.clip_norm = 1;
    o.ema_decay = 0.9;
    count_step(turn == 1 ? cifar_part() : resnet_part(), o, turn == 2 ? 1 << 24 : 0);
  }
  return Sectors::instance().take();
}

// The largest share of the sectors that the warps of a kernel ask for in those of its bytes (`floor`), and in those
// that the kernel touches at all (`compulsory`). A kernel that is not here has 1.05 and 1.1.
struct Limit {
  std::string_view kernel;
  double floor, compulsory;
};
const std::vector<Limit>& limits() {
  static const std::vector<Limit> list{
      // Each block reads the numbers of its channels, which other blocks of the launch read too. With 8 channels for a
      // thread, two loads ask for the same sectors. Kernels with a mask have 8 channels in f32, too, so that this holds
      // for all of their data.
      {"norm_apply<bf16", 1.45, 2.35},
      {"norm_backward_apply<bf16", 1.45, 2.4},
      {"norm_backward_sums<bf16", 1.3, 1.7},
      {"norm_apply<float, 4", 1.05, 1.4},
      {"norm_backward_apply<float, 4", 1.05, 1.4},
      {"norm_backward_sums<float, 4", 1.05, 1.3},
      {"norm_apply<float, 8", 2.05, 2.7},
      {"norm_backward_sums<float, 8", 2.05, 2.4},
      // The same with the numbers of two batch norms.
      {"norm_apply_shortcut<bf16", 1.55, 3.15},
      {"norm_apply_shortcut<float, 8", 2.05, 3.2},
      {"norm_backward_apply_shortcut<bf16", 1.55, 3},
      {"norm_backward_sums_shortcut<bf16", 1.35, 1.85},
      // The first row of each thread is read once more, as the middle of its sums.
      {"norm_statistics", 1.1, 1.35},
      // Reads the partial sums for the mean and again for the variance.
      {"norm_finish", 1.05, 1.4},
      // All passes: the second one reads the data again.
      {"norm_once<bf16", 1.45, 3.5},
      {"norm_once<float", 1.05, 2.15},
      {"norm_backward_once<bf16", 1.45, 3.9},
      {"norm_backward_once<float", 1.05, 2.3},
      // The numbers of the channels, which begin at any multiple of 8 channels.
      {"bias_forward", 1.1, 1.25},
      {"bias_cast", 1.05, 1.5},
      // Each pixel reads the mean's gradient; windows overlap.
      {"average_pool_backward", 1.05, 2},
      {"max_pool<", 1.05, 1.4},
      {"max_pool_backward", 1.05, 2},
      // Three bytes of a pixel, one by one.
      {"normalize_padded", 1.3, 1.7},
      // The values of a 3x3 convolution are 36 bytes apart in the one order or the other.
      {"pack_table<bf16", 1.6, 3.05},
      {"pack_table<float", 4.4, 4.8},
      {"unpack_gradients", 2.15, 2.1},
      // Reads a row three times; rows begin anywhere. The kernels below run in one block.
      {"softmax_rows", 1.3, 2.75},
      {"loss_finish", 1.05, 2.1},
      {"step_begin", 1.05, 1.4},
      {"step_metrics", 1.05, 2.8},
      {"step_decide", 1.25, 3.3},
      {"step_lamb", 1.05, 1.2},
      // Three numbers for each block, and the places where the blocks of a tensor begin.
      {"step_run_norms", 1.1, 13},
  };
  return list;
}

void check(const Counts& counts) {
  for (const auto& [name, c] : counts) {
    Limit limit{"", 1.05, 1.1};
    for (const Limit& l : limits())
      if (name.starts_with(l.kernel) && l.kernel.size() > limit.kernel.size()) limit = l;
    const double floor = static_cast<double>(c.asked) / static_cast<double>(c.floor),
                 compulsory = static_cast<double>(c.asked) / static_cast<double>(c.compulsory);
    std::printf("| %s | %llu | %.2f | %.2f |\n", name.c_str(), static_cast<unsigned long long>(c.asked), floor,
                compulsory);
    CHECK_MESSAGE(floor <= limit.floor, name << " asks for " << floor << " times the sectors of its bytes");
    CHECK_MESSAGE(compulsory <= limit.compulsory, name << " asks for " << compulsory << " times what it touches");
  }
}

// Returns the count of one warp that reads 4 bytes for each lane, `distance` bytes apart.
SectorCount of_loads(unsigned distance, unsigned begin = 0) {
  testing::PtxKernel kernel(testing::entry("mad.wide.u32 %rd1, %r20, " + std::to_string(distance) +
                                           ", %rd20;\nld.global.u32 %r1, [%rd1+" + std::to_string(begin) + "];\n"));
  const testing::DeviceArray<std::uint32_t> in(1024), out(1);
  Sectors::instance().begin();
  kernel.run(1, 32, in.data(), out.data());
  return Sectors::instance().take().at("k");
}

}  // namespace

TEST_CASE("the sectors of a warp are counted: neighbours, distant lanes, one address, an odd beginning, loops") {
  const auto is = [](const SectorCount& c, std::uint64_t requests, std::uint64_t asked, std::uint64_t floor,
                     std::uint64_t compulsory) {
    CHECK(c.requests == requests);
    CHECK(c.asked == asked);
    CHECK(c.floor == floor);
    CHECK(c.compulsory == compulsory);
  };
  is(of_loads(4), 1, 4, 4, 4);
  is(of_loads(8), 1, 8, 4, 8);
  is(of_loads(32), 1, 32, 4, 32);
  is(of_loads(0), 1, 1, 1, 1);
  is(of_loads(4, 4), 1, 5, 4, 5);
  // Lane n reads n times the same 4 bytes, and each lane writes its own; two warps, of which the second one begins
  // with 32 turns.
  testing::PtxKernel kernel(
      testing::entry("mul.wide.u32 %rd1, %r20, 4;\nadd.u64 %rd2, %rd21, %rd1;\nmov.u32 %r1, 0;\n"
                     "$again:\nsetp.ge.u32 %p1, %r1, %r20;\n@%p1 bra $done;\n"
                     "ld.global.u32 %r2, [%rd20];\nadd.u32 %r1, %r1, 1;\nbra $again;\n"
                     "$done:\nst.global.u32 [%rd2], %r1;\n"));
  const testing::DeviceArray<std::uint32_t> in(1), out(64);
  Sectors::instance().begin();
  kernel.run(1, 64, in.data(), out.data());
  is(Sectors::instance().take().at("k"), 31 + 63 + 2, 31 + 63 + 8, 31 + 63 + 8, 1 + 8);
  kernel.run(1, 64, in.data(), out.data());
  CHECK(Sectors::instance().take().empty());
}

TEST_CASE("the kernels of a training step in bf16 ask for few more sectors than they need") {
  if (skipped()) return;
  check(count_steps(DType::bf16));
}

TEST_SUITE("nightly") {
  TEST_CASE("the kernels of a training step in f32, and of other optimizers, ask for few more sectors than they need") {
    if (skipped()) return;
    check(count_steps(DType::f32));
    Sectors::instance().begin();
    for (const AnyOptimizer& optimizer : {AnyOptimizer(Adamw{}), AnyOptimizer(Lars{.eta = 0.01}), AnyOptimizer(Lamb{})})
      count_step(cifar_part(), {.optimizer = optimizer}, 0);
    Counts counts = Sectors::instance().take();
    std::erase_if(counts, [](const auto& c) { return !c.first.starts_with("step_"); });
    check(counts);
  }
}
