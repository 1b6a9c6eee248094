// SPDX-License-Identifier: MIT
// Tests the NCCL communicator: the cases of every communicator with one rank, and with one rank for each of several
// GPUs.
#include <tutti/backends/nccl/nccl.hpp>

#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/memory.hpp>
#include <tutti/backends/nccl/elastic.hpp>
#include <tutti/cluster/rendezvous/rendezvous.hpp>
#include <tutti/cluster/rendezvous/tcp_rendezvous.hpp>
#include <tutti/comm/thread_communicator.hpp>
#include <tutti/strategy/all_reduce.hpp>

#include "backends/need_gpu.hpp"
#include "nccl_cases.hpp"
#include "tests/cluster/arbiter_harness.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using conformance::all_cases;
using conformance::OnDevice;
using cuda::DeviceMemory;
using testing::no_gpu;

TEST_CASE("types and operations are converted to those of NCCL") {
  CHECK(nccl_type(DType::f32) == ncclFloat32);
  CHECK(nccl_type(DType::f64) == ncclFloat64);
  CHECK(nccl_type(DType::bf16) == ncclBfloat16);
  CHECK(nccl_type(DType::f16) == ncclFloat16);
  CHECK(nccl_type(DType::u8) == ncclUint8);
  CHECK(nccl_type(DType::i32) == ncclInt32);
  CHECK(nccl_type(DType::i64) == ncclInt64);
  CHECK(nccl_op(ReduceOp::sum) == ncclSum);
  CHECK(nccl_op(ReduceOp::max) == ncclMax);
  int version = 0;
  CHECK(ncclGetVersion(&version) == ncclSuccess);
  CHECK(version >= 21400);
}

TEST_CASE("NCCL's unique id is sent through another communicator or over TCP") {
  constexpr int size = 3;
  ThreadGroup group(size);
  int port = 0;
  {
    const TcpRendezvous free({"127.0.0.1", 0, "job", "a secret of the tests", 0, 2, 1s});
    port = free.port();
  }
  std::array<ncclUniqueId, size> first{}, second{};
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r)
    ranks.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      ThreadCommunicator c(group, r);
      TcpRendezvous tcp({"127.0.0.1", port, "job", "a secret of the tests", r, size, 20s});
      if (r == 0) std::memset(&first[i], 0x5a, sizeof first[i]);
      if (r == 0) std::memset(&second[i], 0xa5, sizeof second[i]);
      const Rendezvous through = rendezvous_through(c, "an identity"), over = std::ref(tcp);
      through(std::as_writable_bytes(std::span(&first[i], 1)));
      over(std::as_writable_bytes(std::span(&second[i], 1)));
    });
  for (auto& t : ranks) t.join();
  for (std::size_t r = 1; r < size; ++r) {
    CHECK(std::memcmp(&first[r], &first[0], sizeof first[0]) == 0);
    CHECK(std::memcmp(&second[r], &second[0], sizeof second[0]) == 0);
  }
}

TEST_CASE("without a GPU the error message is one line") {
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

TEST_CASE("gpu: all conformance cases pass with one rank") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  NcclCommunicator c(m.device());
  CHECK(c.name() == "nccl");
  CHECK(c.rank_name(0).starts_with("rank 0 on "));
  CHECK_NOTHROW(all_cases(m, c));
  AllReduce<NcclCommunicator> strategy(c);
  CHECK(strategy.size() == 1);
}

TEST_CASE("gpu: all conformance cases pass with one rank for each GPU") {
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
        NcclCommunicator c(m.device(), {.rank = r, .size = size, .deadline = 60s},
                           rendezvous_through(meet, "an identity"));
        all_cases(m, c);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  for (auto& t : ranks) t.join();
  for (const auto& e : errors) CHECK(e == "");
}

TEST_CASE("gpu: if a rank does not arrive, the others end at their deadline") {
  if (no_gpu()) return;
  const cuda::Device device(0);
  // Rank 1 never calls NCCL.
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH_AS(NcclCommunicator(device, {.rank = 0, .size = 2, .deadline = 2s}, [](std::span<std::byte>) {}),
                       doctest::Contains("all 2 ranks to join NCCL"), CommunicationError);
  CHECK(std::chrono::steady_clock::now() - start < 60s);
}

TEST_CASE("gpu: operations are captured and replayed together with the work before and after them") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  NcclCommunicator c(m.device());
  constexpr std::size_t n = 100'000;
  const std::vector<float> start = conformance::values<float>(0, n);
  const OnDevice<float> v(m, start), to(m, std::vector<float>(n));
  const cudaStream_t stream = m.device().stream();
  const auto step = [&] {
    Work w = c.all_reduce(DType::f32, v.bytes(), ReduceOp::sum, "bucket");
    w.wait_device();
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
    c.wait_stream(stream, "a captured step");
    CHECK(to.values() == start);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_CASE("gpu: after an abort no operation starts") {
  if (no_gpu()) return;
  DeviceMemory m(0);
  NcclCommunicator c(m.device());
  const OnDevice<float> v(m, std::vector<float>(100));
  // A single rank has no other ranks to end. Its program continues.
  c.abort("for nothing", ExitCode::internal);
  CHECK_NOTHROW(c.all_reduce(DType::f32, v.bytes(), ReduceOp::sum, "after").wait());
}

TEST_CASE("gpu: a process makes and ends a communicator in each generation") {
  if (no_gpu()) return;
  control::ArbiterOptions o;
  o.workers = 1;
  o.elastic = true;
  testing::ArbiterHarness harness(o);
  DeviceMemory m(0);
  ElasticOptions how;
  how.start.host = "h";
  ElasticNccl strategy(harness.channel(), how, NcclGroupFactory{&m.device(), {60s}});
  const std::vector<float> values(1000, 2.F);
  const OnDevice<float> v(m, values);
  std::size_t free = 0;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    double sum = 3;
    strategy.sum({&sum, 1});
    CHECK(sum == 3);
    Work w = strategy.reduce({Piece::Kind::gradients, 0, DType::f32, v.bytes()});
    w.wait_device();
    // Every second group ends in the middle of its work.
    if (i % 2 == 0) w.wait();
    REQUIRE(strategy.next_generation({i, i % 2 == 1, false}));
    m.synchronise();
    CHECK(v.values() == values);
    if (i == 4) free = m.free_bytes();
  }
  CHECK(strategy.membership().generation == 21);
  // NCCL may keep up to 64 MiB.
  CHECK(m.free_bytes() + (std::size_t{64} << 20) > free);
}
