// SPDX-License-Identifier: MIT
// Tests work that cannot be captured as a CUDA graph, on an emulated GPU (cuda_emulator.hpp): a step goes on without a
// graph, a measurement goes on with the other candidates, and an error of the device ends both.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <tutti/backends/cuda/cudnn/tuning.hpp>
#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/cuda/step_graph.hpp>

#include "backends/cuda_emulator.hpp"

using namespace tutti;
using emulator::Device;

namespace {

// Returns what f writes to stderr.
std::string printed(const std::function<void()>& f) {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  std::fflush(stderr);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(::fileno(file), STDERR_FILENO);
  f();
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::rewind(file);
  std::string text;
  for (int c = 0; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

// Work that allocates memory, as a custom op may. CUDA refuses that while a graph is captured.
void allocate() {
  void* p = nullptr;
  cuda::check(cudaMalloc(&p, 100), "memory of a custom op");
  cudaFree(p);
}
// The same in an op that ignores errors: the capture fails only at its end.
void allocate_unchecked() {
  void* p = nullptr;
  if (cudaMalloc(&p, 100) == cudaSuccess) cudaFree(p);
}

}  // namespace

TEST_CASE("a step that cannot be captured runs without a graph, and says so once") {
  for (const std::function<void()>& forbidden :
       {std::function<void()>(allocate), std::function<void()>(allocate_unchecked)}) {
    cuda::DeviceMemory memory(0);
    cuda::StepGraphs graphs(memory.device());
    int count = 0;
    const auto step = [&] {
      forbidden();
      Device::instance().submit(memory.device().stream(), [&] { ++count; });
    };
    const std::array<std::uint64_t, 1> key{7}, other{8};
    const std::size_t launches = Device::instance().graph_launches;
    const std::string said = printed([&] {
      for (int i = 0; i < 5; ++i) graphs.run(key, {}, step);
      for (int i = 0; i < 3; ++i) graphs.run(other, {}, step);
    });
    memory.synchronise();
    CHECK(count == 8);
    CHECK(graphs.captured() == 0);
    CHECK_FALSE(graphs.capturing());
    CHECK(Device::instance().graph_launches == launches);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    CAPTURE(said);
    const std::string line =
        "tutti: a step cannot be captured as a CUDA graph, and runs without one, which is slower: ";
    const std::size_t at = said.find(line);
    CHECK(at != std::string::npos);
    CHECK(said.find(line, at + 1) == std::string::npos);
    CHECK(said.find("hint: --cuda-graph 0 does not try it\n") != std::string::npos);
    // A step that can be captured still is.
    const std::array<std::uint64_t, 1> good{9};
    for (int i = 0; i < 4; ++i)
      graphs.run(good, {}, [&] { Device::instance().submit(memory.device().stream(), [&] { ++count; }); });
    memory.synchronise();
    CHECK(count == 12);
    CHECK(graphs.captured() == 1);
    CHECK(Device::instance().graph_launches == launches + 3);
  }
  Device::instance().graph_launches = 0;
}

TEST_CASE("a step with operations of several ranks that cannot be captured ends with a hint") {
  cuda::DeviceMemory memory(0);
  cuda::StepGraphs graphs(memory.device());
  memory.device().share_steps(2);
  const std::array<std::uint64_t, 1> key{7};
  graphs.run(key, {}, [] {});
  CHECK_THROWS_WITH_AS(graphs.run(key, {}, [] { allocate(); }),
                       doctest::Contains("hint: give all ranks --cuda-graph 0"), DeviceError);
}

TEST_CASE("an error that is not the device's ends a step that is captured") {
  cuda::DeviceMemory memory(0);
  cuda::StepGraphs graphs(memory.device());
  const std::array<std::uint64_t, 1> key{7};
  graphs.run(key, {}, [] {});
  CHECK_THROWS_AS(graphs.run(key, {}, [] { fail<UsageError>("op", "a batch", "none"); }), UsageError);
  CHECK_FALSE(graphs.capturing());
  CHECK_FALSE(memory.device().capturing());
}

TEST_CASE("a candidate that cannot be captured is not chosen, and the others are measured") {
  cuda::DeviceMemory memory(0);
  for (const std::function<void()>& forbidden :
       {std::function<void()>(allocate), std::function<void()>(allocate_unchecked)}) {
    std::array<int, 3> started{};
    const auto from = [&](std::size_t bad) {
      started = {};
      return cuda::cudnn::detail::fastest_of(memory.device(), 3, [&](std::size_t i, std::size_t) {
        ++started[i];
        if (i == bad || bad == 3) forbidden();
        Device::instance().submit(memory.device().stream(), [] {});
      });
    };
    CHECK(from(0) == 1);
    CHECK(started[2] == 8);  // twice to load its kernels, and six times in its graph
    CHECK(from(2) == 0);
    CHECK(from(3) == std::nullopt);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    const double time = cuda::cudnn::shortest_time(memory.device(), [&] { forbidden(); });
    CHECK(time == std::numeric_limits<double>::max());
    CHECK(cuda::cudnn::shortest_time(memory.device(), [] {}) == 0);
  }
  Device::instance().graph_launches = 0;
}

TEST_CASE("a measurement on a device that has failed throws") {
  cuda::DeviceMemory memory(0);
  Device::instance().fault = cudaErrorIllegalAddress;
  const auto start = [&](std::size_t, std::size_t) { memory.device().synchronise(); };
  CHECK_THROWS_WITH_AS((void)cuda::cudnn::detail::fastest_of(memory.device(), 2, start),
                       doctest::Contains("cudaErrorIllegalAddress"), DeviceError);
  CHECK_THROWS_AS((void)cuda::cudnn::shortest_time(memory.device(), [&] { memory.device().synchronise(); }),
                  DeviceError);
  Device::instance().fault = cudaSuccess;
}

TEST_CASE("a GPU that another process uses alone, or with full memory, is refused with the command that shows it") {
  const auto message = [](cudaError_t e) {
    try {
      cuda::require_usable(e, "GPU 1");
    } catch (const DeviceError& error) {
      CHECK(error.exit_code() == 4);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message(cudaSuccess).empty());
  for (const cudaError_t e : {cudaErrorDevicesUnavailable, cudaErrorDeviceAlreadyInUse}) {
    CHECK(message(e).starts_with("[cuda] expected GPU 1 for this process, got "));
    CHECK(message(e).find("nvidia-smi -q -d COMPUTE,PIDS; --gpus chooses another GPU") != std::string::npos);
  }
  CHECK(message(cudaErrorMemoryAllocation).find("hint: end other programs on this GPU") != std::string::npos);
  CHECK(message(cudaErrorUnknown).find("hint") == std::string::npos);
}

TEST_CASE("room for the libraries is what they have not taken yet, and little of a small memory") {
  auto& device = Device::instance();
  const std::size_t before = device.capacity;
  device.capacity = std::size_t{80} << 30;
  {
    cuda::DeviceMemory memory(0);
    CHECK(memory.library_bytes() == std::size_t{1536} << 20);
    CHECK(memory.free_bytes() + memory.library_bytes() + device.memory.used() == device.capacity);
    // tutti's own memory does not count, that of a library does.
    Buffer own(memory, 1 << 20);
    CHECK(memory.library_bytes() == std::size_t{1536} << 20);
    void* of_library = nullptr;
    REQUIRE(cudaMalloc(&of_library, 100 << 20) == cudaSuccess);
    CHECK(memory.library_bytes() == std::size_t{1436} << 20);
    cudaFree(of_library);
  }
  device.major = 7;
  device.minor = 5;
  CHECK(cuda::DeviceMemory(0).library_bytes() == std::size_t{1050} << 20);
  device.major = 9;
  device.minor = 0;
  device.capacity = device.memory.used() + (std::size_t{1} << 30);
  CHECK(cuda::DeviceMemory(0).library_bytes() == std::size_t{64} << 20);
  device.capacity = before;
}
