// SPDX-License-Identifier: MIT
// takes long
// Tests the CUDA backend on an emulated GPU (cuda_emulator.hpp): tutti's kernels, the memory, the order of launches.
// Loops replace the libraries' convolutions and matrix products.
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/engine/reference/reference.hpp>

#include "backends/emulated_cuda.hpp"
#include "backends/little_net.hpp"
#include "engine/integer_processes.hpp"
#include "engine/suite.hpp"

using namespace tutti;

namespace {

using testing::Emulated;
using testing::LoopGemms;
CudaOptions options(bool graph = false) { return testing::emulated_options(graph); }
bool skipped() { return testing::no_emulator(); }

}  // namespace

TEST_CASE("convolutions that pad channels and pack weights give the expected results") {
  if (skipped()) return;
  Emulated backend(options());
  testing::check_convolutions(backend, testing::odd_conv_cases());
}
TEST_CASE("a convolution in groups is refused when the plan is made") {
  if (skipped()) return;
  Emulated backend(options());
  const testing::OpCase c = testing::op_case(testing::grouped_conv_cases().back());
  for (DType t : {DType::f32, DType::bf16}) {
    Executor e(backend, c.graph(), {t});
    CHECK_THROWS_WITH_AS(
        e.prepare(2, true),
        doctest::Contains("[backend cuda] expected a convolution in one group, got op 'conv2d' in 256 groups"),
        UsageError);
  }
}
TEST_CASE("losses without a kernel for the GPU are refused by name when the plan is made") {
  if (skipped()) return;
  Emulated backend(options());
  for (const testing::OpCase& c : testing::loss_cases()) {
    Executor e(backend, c.graph(), {DType::f32});
    CHECK_THROWS_WITH_AS(e.prepare(2, true), doctest::Contains("[backend cuda] expected softmax cross entropy"),
                         UsageError);
  }
}
TEST_CASE("all ops except convolutions give the expected results in f32") {
  if (skipped()) return;
  Emulated backend(options());
  testing::check_other_ops(backend, DType::f32);
}
TEST_CASE("all ops except convolutions give the expected results in bf16") {
  if (skipped()) return;
  Emulated backend(options());
  testing::check_other_ops(backend, DType::bf16);
}
TEST_CASE("all ops except convolutions give the expected results in f16") {
  if (skipped()) return;
  Emulated backend(options());
  testing::check_other_ops(backend, DType::f16);
}
TEST_CASE("fully connected layers add the bias if the library does not") {
  if (skipped()) return;
  LoopGemms::bias = false;
  Emulated backend(options());
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    testing::check_case(backend, testing::linear_case("linear", 7, 24, 10), t);
  LoopGemms::bias = true;
}
TEST_CASE("weight updates, norms, averages and accumulation give the expected results") {
  if (skipped()) return;
  Emulated backend(options());
  testing::check_updates(backend);
}
TEST_CASE("the conversions of sums of logical ranks give the bits of the reference") {
  if (skipped()) return;
  Emulated backend(options());
  testing::check_integer_passes(backend);
}
TEST_CASE("sums of logical ranks have the same bits as on the processor, for every way to divide them") {
  if (skipped()) return;
  Emulated device(options());
  ReferenceBackend host;
  const ArenaLayout l = testing::tensors_for_sums();
  testing::IntegerProcesses a(host, l, 5, {3}), b(device, l, 5, {2, 0, 1});
  for (std::uint64_t step = 1; step < 4; ++step) {
    const auto ranks = testing::random_ranks(l, 3, 5, step, step == 3 ? 1000.0F : 1.0F);
    const testing::StepSums x = a.step(ranks), y = b.step(ranks, 2);
    CHECK(y.check == SumCheck::fits);
    CHECK(y.attempts == x.attempts);
    CHECK(y.levels == x.levels);
    CHECK(testing::IntegerProcesses::same_bits(y.gradients, x.gradients));
    CHECK(testing::IntegerProcesses::same_bits(y.states, x.states));
  }
}
TEST_CASE("with a fixed division, the libraries choose deterministic kernels and no measured ones") {
  if (skipped()) return;
  CudaOptions o = options();
  o.autotune = true;
  Emulated backend(o);
  CHECK(cuda::convolution_options(backend.options()).measured);
  backend.fix_division();
  const cuda::ConvolutionOptions c = cuda::convolution_options(backend.options());
  CHECK(c.deterministic);
  CHECK_FALSE(c.autotune);
  CHECK_FALSE(c.measured);
  std::string names;
  for (const BitFact& f : backend.bits_depend_on()) names += f.name + ": " + f.value + "\n";
  CAPTURE(names);
  CHECK(names.find("multiprocessors: ") != std::string::npos);
  CHECK(names.find("TF32: in convolutions") != std::string::npos);
}
TEST_CASE("the loss has the expected values, and invalid labels are an error") {
  if (skipped()) return;
  Emulated backend(options());
  testing::check_loss(backend);
}
TEST_CASE("gelu is right at known values, far from zero and for NaN") {
  if (skipped()) return;
  Emulated backend(options());
  testing::check_gelu(backend);
}
TEST_CASE("a NaN in the weights makes the loss NaN") {
  if (skipped()) return;
  Emulated backend(options());
  testing::check_nan_is_not_lost(backend);
}
TEST_CASE("f64 is refused when the plan is made") {
  if (skipped()) return;
  Emulated backend(options());
  testing::check_no_f64(backend);
}
TEST_CASE("two runs give the same bits") {
  if (skipped()) return;
  testing::check_determinism([](int) { return std::make_unique<Emulated>(options()); }, 4, 8);
}
TEST_CASE("keep_all changes only the addresses of values") {
  if (skipped()) return;
  Emulated backend(options());
  testing::check_keep_all(backend, 4, 8);
}

TEST_CASE("custom ops run on the backend's stream") {
  if (skipped()) return;
  auto twice = std::make_shared<CustomOp>();
  twice->name = "twice";
  twice->shape = [](const CustomOp::Shapes& s) { return s; };
  Builder b(3, 4, 4);
  const ValueId x = b.normalize({0, 0, 0}, {1 / 255.F, 1 / 255.F, 1 / 255.F});
  const auto y = b.custom("twice", twice, {x});
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("g", y.at(0)), 3, {}));
  Emulated backend(options());
  const auto batch = testing::random_batch(b.graph(), 2, 1);
  {
    Executor e(backend, b.graph());
    CHECK_THROWS_WITH_AS(e.evaluate(batch.view()), doctest::Contains("backend 'cuda'"), UsageError);
  }
  bool streamed = false;
  twice->forward["cuda"] = [&](std::span<const TensorRef> in, std::span<const TensorRef> out) {
    streamed = cuda::stream_in_use() == backend.device().stream();
    emulator::Device::instance().submit([from = in[0], to = out[0]] {
      for (std::int64_t i = 0; i < from.shape.numel(); ++i)
        static_cast<float*>(to.data)[i] = 2 * static_cast<const float*>(from.data)[i];
    });
  };
  Executor e(backend, b.graph());
  CHECK(std::isfinite(e.evaluate(batch.view()).loss));
  CHECK(streamed);
}
TEST_CASE("the error of a failed allocation gives the memory needed, the free memory and the batch that fits") {
  if (skipped()) return;
  auto& device = emulator::Device::instance();
  const std::size_t before = device.capacity;
  {
    Emulated backend(options());
    const Graph net = testing::little_net();
    Executor e(backend, net);
    testing::randomize(e, 1);
    device.capacity = device.memory.used() + (std::size_t{4} << 20);
    CHECK_THROWS_WITH_AS(e.prepare(4000, true),
                         doctest::Contains("a batch of 4000, got 4 MiB free. hint: at most about"), DeviceError);
    CHECK_THROWS_WITH_AS(
        e.prepare(4000, true),
        doctest::Contains(" in addition to the 1 MiB of parameters, gradients and optimizer state for"), DeviceError);
    // The batch size that the hint names fits, and the backend can continue.
    CHECK(std::isfinite(e.train(testing::random_batch(net, 8, 1).view(), {1, 0.125}).loss));
    try {
      (void)backend.allocate(std::size_t{1} << 33);
      FAIL("allocated more than there is");
    } catch (const DeviceError& error) {
      CHECK(error.exit_code() == 4);
      CHECK(std::string(error.what()).find("8.00 GiB of memory on emulated GPU, got ") != std::string::npos);
      CHECK(std::string(error.what()).find(" free of ") != std::string::npos);
    }
  }
  device.capacity = before;
}
TEST_CASE("the message of an asynchronous error names the op, and no destructor throws during unwinding") {
  if (skipped()) return;
  auto& device = emulator::Device::instance();
  {
    Emulated backend(options());
    const Graph net = testing::little_net();
    Executor e(backend, net);
    e.start_evaluation(testing::random_batch(net, 4, 1).view());
    device.fault = cudaErrorIllegalAddress;
    CHECK_THROWS_WITH_AS((void)e.metrics(), doctest::Contains("the last op started was softmax_cross_entropy 'loss'"),
                         DeviceError);
    const auto run = [&] { e.train(testing::random_batch(net, 4, 1).view(), {1, 0.25}); };
    CHECK_THROWS_WITH_AS(run(), doctest::Contains("cudaErrorIllegalAddress"), DeviceError);
    CHECK_THROWS_WITH_AS(run(), doctest::Contains("the last op started was unpack_gradients"), DeviceError);
    CHECK_THROWS_WITH_AS(run(), doctest::Contains("CUDA_LAUNCH_BLOCKING=1"), DeviceError);
  }
  device.fault = cudaSuccess;
}
TEST_CASE("a machine that cannot be used is refused, and the error gives the reason") {
  auto& device = emulator::Device::instance();
  const auto message = [] {
    try {
      const cuda::Device d(0);
    } catch (const DeviceError& e) {
      CHECK(e.exit_code() == 4);
      CHECK(std::string(e.what()).find('\n') == std::string::npos);
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(message().empty());
  device.driver = 0;
  CHECK(message().find("expected an NVIDIA driver, got no driver") != std::string::npos);
  device.driver = 11040;
  CHECK(message().find("got a driver for CUDA 11.4") != std::string::npos);
  device.driver = 13000;
  device.count = 0;
  CHECK(message().find("expected a GPU, got no GPU") != std::string::npos);
  // Automatic selection reports an unusable GPU, but not a missing one.
  CHECK_FALSE(cuda::check_gpu(0).will_do);
  CHECK(cuda::check_gpu(0).why.empty());
  device.count = 1;
  CHECK(cuda::check_gpu(0).will_do);
  for (const auto& [major, minor] : {std::pair(3, 7), std::pair(5, 2), std::pair(6, 1), std::pair(7, 0)}) {
    device.major = major;
    device.minor = minor;
    const std::string got =
        "got emulated GPU of compute capability " + std::to_string(major) + "." + std::to_string(minor);
    device.runtime = 13000;
    CHECK(message().find("compute capability 7.5 or newer (Turing, 2018), because this is a build with CUDA 13.0, " +
                         got) != std::string::npos);
    // The message has a hint if a build with CUDA 12 could use this GPU.
    CHECK((message().find("hint: build with CUDA 12.8 or 12.9") != std::string::npos) == (major == 7));
    CHECK_FALSE(cuda::check_gpu(0).will_do);
    CHECK(cuda::check_gpu(0).why.find(got) != std::string::npos);
    device.runtime = 12090;
    if (major < 7) {
      CHECK(message().find("compute capability 7.0 or newer (Volta, 2017), " + got) != std::string::npos);
    } else {
      CHECK(message().empty());
      CHECK(cuda::check_gpu(0).will_do);
    }
  }
  device.runtime = CUDART_VERSION;
  device.major = 9;
  device.minor = 0;
  device.access = cudaErrorDevicesUnavailable;
  CHECK(message().starts_with("[cuda] expected GPU 0 for this process, got "));
  CHECK(message().find("another process uses it alone") != std::string::npos);
  CHECK(cuda::check_gpu(0).why == message());
  device.access = cudaErrorMemoryAllocation;
  CHECK(message().find("hint: end other programs on this GPU: see nvidia-smi") != std::string::npos);
  device.access = cudaSuccess;
  device.driver = 11040;
  CHECK(cuda::check_gpu(0).why.find("update the NVIDIA driver") != std::string::npos);
  device.driver = 13000;
  CHECK_THROWS_WITH_AS(cuda::Device(3), doctest::Contains("a GPU number in 0..0, got 3"), DeviceError);
}
TEST_CASE("GPUs of compute capability 7.0 (with CUDA 12) and 7.5 compute in f16 and f32") {
  if (skipped()) return;
  auto& device = emulator::Device::instance();
  const Graph net = testing::little_net();
  for (const int minor : {0, 5}) {
    device.major = 7;
    device.minor = minor;
    if (minor == 0) device.runtime = 12090;
    const std::string capability = "7." + std::to_string(minor);
    CAPTURE(capability);
    {
      Emulated backend(options());
      CHECK(backend.description().find("(sm_7" + std::to_string(minor) + ")") != std::string::npos);
      const std::string refusal = "emulated GPU of compute capability " + capability +
                                  ", which has no bf16, got bf16. hint: use --precision f16";
      CHECK_THROWS_WITH_AS(backend.launcher().require(DType::bf16), doctest::Contains(refusal.c_str()), UsageError);
      for (const DType precision : {DType::f32, DType::f16}) {
        Executor e(backend, net, {precision});
        testing::randomize(e, 1);
        CHECK(e.train(testing::random_batch(net, 4, 1).view(), {1, 0.25}).rows == 4);
      }
      CudaOptions tf32 = options();
      for (const std::optional<bool> none : {std::optional<bool>(), std::optional(false)}) {
        tf32.tf32 = none;
        CHECK(Emulated(tf32).options().tf32 == std::optional(false));
      }
      tf32.tf32 = true;
      CHECK_THROWS_WITH_AS(Emulated{tf32}, doctest::Contains("[--tf32] expected a GPU of compute capability 8.0"),
                           UsageError);
    }
    device.runtime = CUDART_VERSION;
  }
  device.major = 9;
  device.minor = 0;
}
TEST_CASE("replaying a graph sets the loss scale without compiling the kernels of the ops") {
  if (skipped()) return;
  CudaOptions o = options();
  o.graph = true;
  o.kernel_folder = emulator::folder() / "no ops";
  Emulated backend(o);
  const StepScalars scalars;
  backend.replay(std::array<std::uint64_t, 1>{1}, &scalars, [] {});
  backend.synchronise();
  for (const auto& e : std::filesystem::directory_iterator(o.kernel_folder))
    CHECK(e.path().filename().string().find("ops-") == std::string::npos);
}
TEST_CASE("a launch with wrong arguments is refused") {
  if (skipped()) return;
  Emulated backend(options());
  Buffer b(backend, 64);
  auto& l = backend.launcher();
  const auto add = [&](auto... arguments) { l.op(DType::f32, cuda::OpKernel::add, dim3(1), 32, arguments...); };
  void* const p = b.data();
  add(p, p, p, std::int64_t{16});
  backend.synchronise();
  CHECK_THROWS_WITH_AS(
      add(p, p, p, 16),
      doctest::Contains("[kernel add<T, V>] expected arguments of these bytes: 8, 8, 8, 8, got 8, 8, 8, 4"), Error);
  CHECK_THROWS_AS(add(p, p, p), Error);
  CHECK_THROWS_AS(add(p, p, p, std::int64_t{16}, 0), Error);
  CHECK_THROWS_WITH_AS(l.update(cuda::UpdateKernel::set_scale, dim3(1), 1, p, 1.0F),
                       doctest::Contains("[kernel set_scale]"), Error);
  CHECK(cudaGetLastError() == cudaSuccess);
}
TEST_CASE("the device may read pinned memory until the host has waited") {
  if (skipped()) return;
  Emulated backend(options());
  const auto pinned = cuda::allocate_pinned(16);
  auto* const numbers = static_cast<int*>(pinned.get());
  Buffer there(backend, 16);
  numbers[0] = 7;
  backend.copy_in(there.data(), numbers, 4);
  int back = 0;
  backend.copy_out(&back, there.data(), 4);
  CHECK(back == 7);
}
