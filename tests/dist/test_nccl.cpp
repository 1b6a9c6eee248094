// SPDX-License-Identifier: MIT
// The NCCL communicator: the cases of every communicator with one rank, and with a rank a GPU where there are several.
#include <tutti/backends/nccl/nccl.hpp>

#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/memory.hpp>
#include <tutti/dist/all_reduce.hpp>
#include <tutti/dist/rendezvous.hpp>
#include <tutti/dist/threads.hpp>
#include <tutti/tensor/memory.hpp>

#include "backends/need_gpu.hpp"
#include "conformance.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using cuda::DeviceMemory;
using testing::no_gpu;

namespace {

// Values in the device's memory.
template <class T>
struct OnDevice {
  OnDevice(DeviceMemory& m, const std::vector<T>& v) : memory(m), buffer(m, v.size() * sizeof(T)), n(v.size()) {
    set(v);
  }
  void set(const std::vector<T>& v) {
    memory.copy_in(buffer.data(), v.data(), n * sizeof(T));
    memory.synchronise();
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {static_cast<std::byte*>(buffer.data()), n * sizeof(T)}; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> v(n);
    memory.copy_out(v.data(), buffer.data(), n * sizeof(T));
    return v;
  }
  DeviceMemory& memory;
  Buffer<DeviceMemory> buffer;
  std::size_t n;
};

// The same operations on the device's own memory.
void device_cases(DeviceMemory& m, NcclCommunicator& c) {
  using conformance::expect;
  using conformance::patience;
  using conformance::require;
  using conformance::values;
  cuda::Event ready(m.device());
  for (const std::size_t n : {std::size_t{1}, std::size_t{17}, std::size_t{4096}, std::size_t{1'000'003}}) {
    OnDevice<float> v(m, values<float>(c.rank(), n));
    Work w = c.all_reduce(DType::f32, v.bytes(), Combine::sum, nullptr, "sum");
    require(w.name() == "sum", "its name");
    w.wait_device(m.device().stream());
    expect(v.values(), 0, n, c.size(), Combine::sum, "sum, waited for by the device");
    require(w.done(), "done after the stream was waited for");

    // Behind an event of the device's stream.
    v.set(values<float>(c.rank(), n));
    ready.record(m.device().stream());
    c.all_reduce(DType::f32, v.bytes(), Combine::sum, ready.get(), "event").wait_host(patience);
    expect(v.values(), 0, n, c.size(), Combine::sum, "sum behind an event");

    v.set(values<float>(c.rank(), n));
    c.all_reduce(DType::f32, v.bytes(), Combine::max, nullptr, "max").wait_host(patience);
    expect(v.values(), 0, n, c.size(), Combine::max, "max");

    v.set(values<float>(c.rank(), n));
    c.reduce_scatter(DType::f32, v.bytes(), Combine::sum, nullptr, "scatter").wait_host(patience);
    const RankShare s = share_of(n, 4, c.size(), c.rank());
    expect(v.values(), s.begin, s.end, c.size(), Combine::sum, "reduce_scatter");

    for (int root = 0; root < c.size(); ++root) {
      v.set(values<float>(c.rank(), n));
      c.broadcast(v.bytes(), root, nullptr, "broadcast").wait_host(patience);
      require(v.values() == values<float>(root, n), "broadcast");
    }
    v.set(values<float>(c.rank(), n));
    OnDevice<float> all(m, std::vector<float>(n * static_cast<std::size_t>(c.size())));
    c.all_gather(v.bytes(), all.bytes(), nullptr, "gather").wait_host(patience);
    const auto got = all.values();
    for (int r = 0; r < c.size(); ++r) {
      const auto want = values<float>(r, n);
      require(std::equal(want.begin(), want.end(),
                         got.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(r) * n)),
              "all_gather");
    }
    OnDevice<bf16> b(m, values<bf16>(c.rank(), n));
    c.all_reduce(DType::bf16, b.bytes(), Combine::sum, nullptr, "bf16").wait_host(patience);
    expect(b.values(), 0, n, c.size(), Combine::sum, "bf16");
  }
}

void all_cases(DeviceMemory& m, NcclCommunicator& c) {
  std::string at;
  try {
    for (const auto& one : conformance::cases<NcclCommunicator>()) {
      at = one.name;
      one.run(c);
    }
    at = "data of the device";
    device_cases(m, c);
  } catch (const std::exception& e) {
    throw std::runtime_error(at + ": " + e.what());
  }
}

}  // namespace

TEST_CASE("types and operations have their counterparts") {
  CHECK(nccl_type(DType::f32) == ncclFloat32);
  CHECK(nccl_type(DType::f64) == ncclFloat64);
  CHECK(nccl_type(DType::bf16) == ncclBfloat16);
  CHECK(nccl_type(DType::f16) == ncclFloat16);
  CHECK(nccl_type(DType::u8) == ncclUint8);
  CHECK(nccl_type(DType::i32) == ncclInt32);
  CHECK(nccl_type(DType::i64) == ncclInt64);
  CHECK(nccl_op(Combine::sum) == ncclSum);
  CHECK(nccl_op(Combine::max) == ncclMax);
  int version = 0;
  CHECK(ncclGetVersion(&version) == ncclSuccess);
  CHECK(version >= 21400);
}

TEST_CASE("the identity travels through another communicator, or over TCP") {
  constexpr int size = 3;
  ThreadGroup group(size);
  int port = 0;
  {
    const TcpRendezvous free({"127.0.0.1", 0, "job", 0, 2, 1s});
    port = free.port();
  }
  std::array<ncclUniqueId, size> first{}, second{};
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r)
    ranks.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      ThreadCommunicator c(group, r);
      TcpRendezvous tcp({"127.0.0.1", port, "job", r, size, 20s});
      if (r == 0) std::memset(&first[i], 0x5a, sizeof first[i]);
      if (r == 0) std::memset(&second[i], 0xa5, sizeof second[i]);
      const Rendezvous through = rendezvous_through(c), over = std::ref(tcp);
      through(std::as_writable_bytes(std::span(&first[i], 1)));
      over(std::as_writable_bytes(std::span(&second[i], 1)));
    });
  for (auto& t : ranks) t.join();
  for (std::size_t r = 1; r < size; ++r) {
    CHECK(std::memcmp(&first[r], &first[0], sizeof first[0]) == 0);
    CHECK(std::memcmp(&second[r], &second[0], sizeof second[0]) == 0);
  }
}

TEST_CASE("without a GPU one line says so") {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) {
    std::puts("SKIP: there is a GPU");
    return;
  }
  cudaGetLastError();
  CHECK_THROWS_AS(cuda::Device(0), DeviceError);
}

TEST_CASE("gpu: a rank outside the job is refused") {
  if (no_gpu()) return;
  const cuda::Device device(0);
  CHECK_THROWS_AS(NcclCommunicator(device, {.rank = 1, .size = 1}), UsageError);
  CHECK_THROWS_AS(NcclCommunicator(device, {.rank = 0, .size = 0}), UsageError);
}

TEST_CASE("gpu: every case with one rank") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  NcclCommunicator c(m.device());
  CHECK(c.name() == "nccl");
  CHECK(c.rank_name(0).starts_with("rank 0 on "));
  CHECK_NOTHROW(all_cases(m, c));
  AllReduce<NcclCommunicator> strategy(c);
  CHECK(strategy.size() == 1);
}

TEST_CASE("gpu: every case with a rank a GPU") {
  if (no_gpu()) return;
  int count = 0;
  cuda::check(cudaGetDeviceCount(&count), "a list of GPUs");
  const int size = std::min(count, 4);
  if (size < 2) {
    std::puts("SKIP: one GPU");
    return;
  }
  ThreadGroup group(size);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r)
    ranks.emplace_back([&, r] {
      try {
        ThreadCommunicator meet(group, r);
        DeviceMemory m(r);
        NcclCommunicator c(m.device(), {.rank = r, .size = size, .deadline = 60s}, rendezvous_through(meet));
        all_cases(m, c);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  for (auto& t : ranks) t.join();
  for (const auto& e : errors) CHECK(e == "");
}

TEST_CASE("gpu: a rank that does not come ends the others at their deadline") {
  if (no_gpu()) return;
  const cuda::Device device(0);
  // Rank 1 never calls.
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH_AS(NcclCommunicator(device, {.rank = 0, .size = 2, .deadline = 2s}, [](std::span<std::byte>) {}),
                       doctest::Contains("all 2 ranks to join NCCL"), CommunicationError);
  CHECK(std::chrono::steady_clock::now() - start < 60s);
}

TEST_CASE("gpu: operations are captured with what is around them, and replayed") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  NcclCommunicator c(m.device());
  constexpr std::size_t n = 100'000;
  const std::vector<float> start = conformance::values<float>(0, n);
  const OnDevice<float> v(m, start), to(m, std::vector<float>(n));
  const cudaStream_t stream = m.device().stream();
  const auto step = [&] {
    Work w = c.all_reduce(DType::f32, v.bytes(), Combine::sum, nullptr, "bucket");
    w.wait_device(stream);
    m.copy(to.buffer.data(), v.buffer.data(), n * sizeof(float));
  };
  step();
  m.synchronise();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
  step();
  cuda::check(cudaStreamEndCapture(stream, &graph), "its end");
  cuda::check(cudaGraphInstantiate(&executable, graph, 0), "a graph that runs");
  for (int i = 0; i < 3; ++i) {
    m.zero(to.buffer.data(), n * sizeof(float));
    cuda::check(cudaGraphLaunch(executable, stream), "it to start");
    c.wait_stream(stream, 30s, "a captured step");
    CHECK(to.values() == start);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_CASE("gpu: after an abort nothing starts any more") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  NcclCommunicator c(m.device());
  const OnDevice<float> v(m, std::vector<float>(100));
  // One rank has nobody to end; its program goes on.
  c.abort("for nothing", ExitCode::internal);
  CHECK_NOTHROW(c.all_reduce(DType::f32, v.bytes(), Combine::sum, nullptr, "after").wait_host(10s));
}
