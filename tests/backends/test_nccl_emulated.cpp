// SPDX-License-Identifier: MIT
// takes long
// Tests the NCCL communicator on an emulated GPU and an emulated NCCL (nccl_emulator.hpp): the cases for every
// communicator with several ranks, a trainer that uses it, and failures.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/cluster/rendezvous/tcp_rendezvous.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/any_strategy.hpp>

#include "backends/cuda_emulator.hpp"
#include "nccl_cases.hpp"
#include "nccl_emulator.hpp"
#include "nccl_tcp_ranks.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using conformance::OnDevice;
using conformance::require;
using cuda::DeviceMemory;
using emulator::nccl;
using testing::free_port;
using testing::on_ranks;
using testing::on_two_ranks;

namespace {

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const CommunicationError& e) {
    return e.what();
  }
  return "";
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("all conformance cases pass with 1, 2 and 4 ranks") {
  for (const auto& run : {std::pair{1, false}, {2, false}, {2, true}, {4, false}}) {
    const int size = run.first;
    const bool hasty = run.second;
    CAPTURE(size);
    on_ranks(size, [hasty](DeviceMemory& m, NcclCommunicator& c) {
      // NCCL's stream works as early as possible if `hasty`, otherwise as late as possible.
      emulator::Device::instance().hasty = hasty;
      conformance::all_cases(m, c);
      require(c.rank_name(c.size() - 1).starts_with("rank " + std::to_string(c.size() - 1) + " on "), "its name");
    });
  }
}

TEST_CASE("operations and the device's stream wait for each other without the host") {
  DeviceMemory m(0);
  NcclCommunicator c(m.device());
  const std::vector<float> start(100, 3.F);
  OnDevice<float> v(m, start), to(m, std::vector<float>(100));
  const std::vector<float> late(100, 5.F);
  auto& device = emulator::Device::instance();
  const std::size_t waits = device.stream_waits;
  m.copy_in(v.buffer.data(), late.data(), 400);
  Work w = c.all_reduce(DType::f32, v.bytes(), ReduceOp::sum, "bucket");
  CHECK_FALSE(w.done());
  w.wait_device();
  m.copy(to.buffer.data(), v.buffer.data(), 400);
  CHECK(device.stream_waits == waits);
  CHECK(to.values() == late);
  CHECK(w.done());
}

TEST_CASE("gradients lie in memory that is registered with the communicator, if NCCL can register it") {
  on_ranks(2, [](DeviceMemory& m, NcclCommunicator& c) {
    const std::span<std::byte> bytes = c.allocate(4000);
    require(bytes.size() == 4000 && nccl.registered == 1, "registered memory");
    std::vector<float> v(1000, 1.F);
    m.copy_out(v.data(), bytes.data(), 4000);
    require(v == std::vector<float>(1000, 0.F), "zeros");
    v.assign(1000, static_cast<float>(c.rank() + 1));
    m.copy_in(bytes.data(), v.data(), 4000);
    c.all_reduce(DType::f32, bytes, ReduceOp::sum, "gradients").wait();
    m.copy_out(v.data(), bytes.data(), 4000);
    require(v == std::vector<float>(1000, 3.F), "their sum");
    require(c.allocate(10).empty(), "there is one registered piece");
  });
  // NCCL that cannot register memory still sums it; an older NCCL lacks the functions.
  on_ranks(2, [](DeviceMemory&, NcclCommunicator& c) {
    nccl.registration = ncclInvalidUsage;
    require(c.allocate(64).size() == 64 && nccl.registered == 0, "memory that is not registered");
  });
  on_ranks(2, [](DeviceMemory& m, NcclCommunicator& c) {
    auto& device = emulator::Device::instance();
    device.capacity = device.memory.used() + 1000;
    require(c.allocate(4000).empty() && nccl.registered == 0, "no memory");
    m.synchronise();
  });
  DeviceMemory m(0);
  CHECK(NcclMemory::allocate(NcclRegistration{}, m.device(), 64) == nullptr);
  // The memory is tutti's: it does not count as taken by the libraries from the room that is kept for them.
  auto& device = emulator::Device::instance();
  const std::size_t before = std::exchange(device.capacity, std::size_t{80} << 30);
  {
    const DeviceMemory large(0);
    const std::size_t libraries = large.library_bytes();
    const auto memory = NcclMemory::allocate(nccl_registration(), large.device(), std::size_t{100} << 20);
    REQUIRE(memory != nullptr);
    CHECK(large.library_bytes() == libraries);
    CHECK(large.allocated_bytes() == std::size_t{100} << 20);
  }
  device.capacity = before;
  const cuda::Library c("libc.so.6", "libc6"), none("libtutti-no-such-library.so.9", "none");
  CHECK((c.find<int()>("getpid") != nullptr));
  CHECK((c.find<int()>("ncclCommRegister") == nullptr));
  CHECK((none.find<int()>("getpid") == nullptr));
}

TEST_CASE("all ranks get the state of rank 0, in device memory and in host memory") {
  on_ranks(3, [](DeviceMemory& m, NcclCommunicator& c) {
    AnyStrategy any = AnyStrategy::make<AllReduce<NcclCommunicator>>(c);
    require(any.reads_device_memory(), "it reads the device's memory");
    const auto r = static_cast<float>(c.rank());
    const OnDevice<float> same(m, std::vector<float>(50, 1.F)), other(m, std::vector<float>(70'000, r));
    std::vector<float> host(9, r + 3);
    std::vector<StateSpan> state{{"same", DType::f32, {50}, same.bytes()},
                                 {"other", DType::f32, {70'000}, other.bytes()},
                                 {"host", DType::f32, {9}, std::as_writable_bytes(std::span(host))}};
    const int before = nccl.started;
    any.synchronise(state);
    require(nccl.started == before + 3,
            "expected three operations: one for hashes, one for each of two spans that differ");
    require(same.values() == std::vector<float>(50, 1.F), "what was the same");
    require(other.values() == std::vector<float>(70'000, 0.F), "rank 0's, on the device");
    require(host == std::vector<float>(9, 3.F), "rank 0's, on the host");
    std::vector<double> metrics{1, static_cast<double>(c.rank())};
    any.sum(metrics);
    require(metrics == std::vector<double>{3, 3}, "metrics");
    JobFacts f;
    f.add("--lr", c.rank() == 2 ? "0.2" : "0.1");
    std::string refused;
    try {
      any.attach({}, f);
    } catch (const UsageError& e) {
      refused = e.what();
    }
    require(contains(refused, "--lr 0.1") && contains(refused, "rank 2"), "the fact that differs: " + refused);
  });
}

TEST_CASE("a communicator is finalized at its end, or aborted without a wait while an exception unwinds") {
  DeviceMemory m(0);
  nccl.finalized = nccl.destroyed = nccl.aborted = 0;
  { const NcclCommunicator c(m.device()); }
  CHECK(nccl.finalized == 1);
  CHECK(nccl.destroyed == 1);
  CHECK(nccl.aborted == 0);
  try {
    const NcclCommunicator c(m.device());
    throw std::runtime_error("elsewhere");
  } catch (const std::runtime_error&) {
  }
  CHECK(nccl.finalized == 1);
  CHECK(nccl.aborted == 1);
}

TEST_CASE("a rank that does not arrive, is gone or is late gives an error by the deadline") {
  DeviceMemory m(0);
  nccl.world = std::make_unique<emulator::NcclWorld>();
  std::string said = message([&] {
    const NcclCommunicator c(m.device(), {.rank = 0, .size = 2, .deadline = 300ms}, [](std::span<std::byte>) {});
  });
  CHECK_MESSAGE(
      contains(said, "[all 2 ranks to join NCCL] expected all ranks within the deadline, got no end after 300"), said);
  nccl.world.reset();

  // Adds n items of 100 us to a stream, so that an operation after them ends late.
  const auto busy = [&](cudaStream_t stream, int n) {
    for (int i = 0; i < n; ++i) emulator::Device::instance().submit(stream, [] { std::this_thread::sleep_for(100us); });
  };
  const auto of_nccl = [] { return reinterpret_cast<cudaStream_t>(emulator::Device::instance().sides.back()); };
  {
    NcclCommunicator c(m.device());
    const OnDevice<float> v(m, std::vector<float>(10));
    busy(of_nccl(), 3000);
    Work w = c.all_reduce(DType::f32, v.bytes(), ReduceOp::sum, "step 7 bucket 2");
    nccl.asynchronous_error = ncclRemoteError;
    said = message([&] { w.wait(); });
    CHECK_MESSAGE(contains(said, "[step 7 bucket 2] expected all ranks, got remote process exited"), said);
    nccl.asynchronous_error = ncclSuccess;
    said = message([&] { (void)c.all_reduce(DType::f32, v.bytes(), ReduceOp::sum, "later"); });
    CHECK_MESSAGE(contains(said, "one that has been aborted"), said);
    m.synchronise();
  }
  {
    NcclCommunicator c(m.device(), {.rank = 0, .size = 1, .deadline = 200ms});
    const OnDevice<float> v(m, std::vector<float>(10));
    busy(of_nccl(), 20000);
    Work w = c.all_reduce(DType::f32, v.bytes(), ReduceOp::sum, "step 8 bucket 0");
    said = message([&] { w.wait(); });
    CHECK_MESSAGE(contains(said, "[step 8 bucket 0] expected all ranks within the deadline, got no end after 200 ms"),
                  said);
    CHECK(contains(said, "--comm-deadline"));
    m.synchronise();
  }
  {
    // A captured step is a stream that holds operations.
    NcclCommunicator c(m.device(), {.rank = 0, .size = 1, .deadline = 200ms});
    busy(m.device().stream(), 20000);
    said = message([&] { c.wait_stream(m.device().stream(), "step 9"); });
    CHECK_MESSAGE(contains(said, "[step 9] expected all ranks within the deadline"), said);
    m.synchronise();
  }
}

TEST_CASE("sums of data in host memory end at the deadline if a rank is gone") {
  // Without the deadline, the copy to the host's memory would wait for the kernel, and the kernel for the lost rank.
  const auto alone = [](NcclCommunicator& c, const std::function<void()>& sum) {
    if (c.rank() == 1) ::_exit(0);
    emulator::Device::instance().patience = 15;
    return message(sum);
  };
  CHECK(on_two_ranks(60s, [&](DeviceMemory&, NcclCommunicator& c) {
          const std::string why = alone(c, [&] { c.barrier(300ms); });
          require(contains(why, "[barrier] expected all ranks within the deadline, got no end after 300 ms"), why);
        }) == "");
  CHECK(on_two_ranks(4s, [&](DeviceMemory&, NcclCommunicator& c) {
          std::array<float, 4> host{1, 2, 3, 4};
          const std::string why = alone(c, [&] {
            (void)c.all_reduce(DType::f32, std::as_writable_bytes(std::span(host)), ReduceOp::max, "metrics");
          });
          require(contains(why, "[metrics] expected all ranks within the deadline, got no end after 4000 ms"), why);
        }) == "");
}

TEST_CASE("an interrupt ends a wait of the host, and the communicator is aborted once and not finalized") {
  const int port = free_port();
  const auto said = emulator::run_ranks(2, [&](int rank) {
    DeviceMemory m(0);
    TcpRendezvous meet({"127.0.0.1", port, "job", "a secret of the tests", rank, 2, 20s});
    const OnDevice<float> v(m, std::vector<float>(10));
    {
      nccl.finalized = nccl.aborted = 0;
      NcclCommunicator c(m.device(), {.rank = rank, .size = 2, .deadline = 600s}, std::ref(meet));
      if (rank == 1) ::_exit(0);  // it never arrives
      require(m.device().ranks() == 2, "a captured step holds operations of two ranks");
      const auto start = std::chrono::steady_clock::now();
      Work w = c.all_reduce(DType::f32, v.bytes(), ReduceOp::sum, "bucket");
      std::thread other([&] {
        std::this_thread::sleep_for(200ms);
        c.interrupt();
      });
      const std::string why = message([&] { w.wait(); });
      other.join();
      require(contains(why, "[bucket] expected all ranks, got this rank has aborted"), why);
      require(std::chrono::steady_clock::now() - start < 10s, "it waited");
      std::string later = message([&] { (void)c.all_reduce(DType::f32, v.bytes(), ReduceOp::sum, "later"); });
      require(contains(later, "[later]"), "another one: " + later);
      later = message([&] { c.wait_until([] { return false; }, "a step"); });
      require(contains(later, "[a step]"), "a captured step: " + later);
      require(nccl.aborted == 1, "who waited has aborted it");
      require(m.device().ranks() == 1, "no other rank shares steps after the abort");
    }
    require(nccl.aborted == 1 && nccl.finalized == 0, "its end");
  });
  CHECK(said[0] == "");
}

TEST_CASE("a unique id of another job is refused") {
  const int port = free_port();
  const auto said = emulator::run_ranks(2, [&](int rank) {
    DeviceMemory m(0);
    TcpRendezvous meet({"127.0.0.1", port, rank == 0 ? "job" : "other job", "a secret of the tests", rank, 2, 500ms});
    const NcclCommunicator c(m.device(), {.rank = rank, .size = 2, .deadline = 1s}, std::ref(meet));
  });
  CHECK_MESSAGE(contains(said[0], "no message from rank 1"), said[0]);
  CHECK_MESSAGE(contains(said[1], "another job is at this port"), said[1]);
}

TEST_CASE("if memory is too small for communication, the error says so") {
  DeviceMemory m(0);
  auto& device = emulator::Device::instance();
  const std::size_t before = std::exchange(device.capacity, device.memory.used() + 1000);
  std::string said;
  try {
    const NcclCommunicator c(m.device());
  } catch (const DeviceError& e) {
    said = e.what();
    CHECK(e.exit_code() == 4);
  }
  device.capacity = before;
  CHECK_MESSAGE(contains(said, "of memory for communication on emulated GPU"), said);
}
