// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/device.hpp>
#include <tutti/backends/nccl/api.hpp>
#include <tutti/cluster/rendezvous/rendezvous.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/comm/work.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/pause_tolerant_timer.hpp>

namespace tutti {

struct NcclOptions {
  int rank = 0, size = 1;
  std::chrono::milliseconds deadline = usual_deadline;  // of each operation, and of the rendezvous
  // The host of each rank, for messages. If empty, the ranks exchange their hosts' names.
  std::vector<std::string> hosts{};
  // If it is raised, the group ends, also while it is formed. May be null. Must outlive the group.
  const InterruptFlag* flag = nullptr;
};

[[nodiscard]] inline ncclDataType_t nccl_type(DType t) {
  switch (t) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::u8:
      return ncclUint8;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
  }
  fail("nccl", "a known element type", static_cast<int>(t));
}
[[nodiscard]] inline ncclRedOp_t nccl_op(ReduceOp c) noexcept { return c == ReduceOp::sum ? ncclSum : ncclMax; }

// Tells NCCL 2.29 and newer that the operations of a communicator are not mixed: then NCCL adds no events to graphs
// that would order them. Has no effect in an older NCCL, whose configuration has no such member. By NCCL's
// documentation of NCCL_GRAPH_MIXING_SUPPORT (user guide of NCCL 2.30, "Environment Variables"), these are not
// supported then:
//  - graphs with operations of one communicator that are launched on different streams without dependencies that order
//    them. Any number of graphs is safe if all are launched on one stream: StepGraphs launches all of them on the
//    device's stream. The page of ncclConfig_t describes mode 1 as "one graph"; NCCL's source treats modes 0 and 1
//    alike, and mode 0 also warns about captures.
//  - an operation outside a graph from the launch of a graph with operations of the communicator until its kernels have
//    ended, whatever the streams: NcclCommunicator::wait_for_captured().
// A graph after an operation outside a graph is safe, because Work::wait_device() and Work::wait() put this operation
// before later work of the device's stream. If a user sets NCCL_GRAPH_MIXING_SUPPORT, NCCL takes mode 2 (1) or 0 (0)
// instead; with both, the rules above are kept.
template <class Config>
void set_graph_usage(Config& config) noexcept {
  if constexpr (requires { config.graphUsageMode; }) config.graphUsageMode = 1;
}

// NCCL's communicator, created without blocking: every wait has a deadline, after which the communicator is aborted.
// One thread makes all calls. If another thread interrupts the group, the first thread also aborts it, because NCCL
// allows no abort during another call.
class NcclGroup {
 public:
  // A collective call of all ranks. Throws CommunicationError if a rank does not join before the deadline.
  NcclGroup(const cuda::Device& device, const NcclOptions& o, const Rendezvous& rendezvous)
      : device_(device), deadline_(o.deadline), flag_(o.flag) {
    if (o.size < 1 || o.rank < 0 || o.rank >= o.size)
      fail<UsageError>("nccl", "a rank of a job", {"rank ", o.rank, " of ", o.size});
    device.use();
    const std::string all = "all " + std::to_string(o.size) + " ranks to join NCCL";
    // NCCL keeps a thread and a socket for an identity until all ranks have joined with it. So a group that has already
    // ended must not create an identity.
    if (failed()) stop_here(all);
    ncclUniqueId id{};
    if (o.rank == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId", "start");
    if (o.size > 1) rendezvous(std::as_writable_bytes(std::span(&id, 1)));
    if (failed()) stop_here(all);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    set_graph_usage(config);
    try {
      ncclComm_t comm = nullptr;
      const ncclResult_t r = ncclCommInitRankConfig(&comm, o.size, id, o.rank, &config);
      comm_.store(comm);
      settle(r, "ncclCommInitRankConfig", all);
      // The priority is slightly higher than that of the device's own stream: operations for which other ranks wait
      // start as soon as the GPU has room.
      cuda::check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, -1), "a stream for NCCL");
      device.share_steps(o.size);
    } catch (...) {
      abort();
      throw;
    }
  }
  // Waits for the other ranks, unless an operation fails before or during the wait. Never throws.
  ~NcclGroup() {
    // NCCL waits until no graph contains its operations.
    device_.forget_captured();
    device_.share_steps(1);
    if (comm() != nullptr && !failed()) {
      try {
        settle(ncclCommFinalize(comm()), "ncclCommFinalize", "end");
        ncclCommDestroy(comm_.exchange(nullptr));
      } catch (const std::exception& e) {
        // The thread that raised the flag knows the reason, so it is not printed.
        if (!flagged()) std::fprintf(stderr, "tutti: %s\n", e.what());
      }
    }
    abort();
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_; }
  [[nodiscard]] ncclComm_t comm() const noexcept { return comm_.load(); }
  [[nodiscard]] const cuda::Device& device() const noexcept { return device_; }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return deadline_; }
  [[nodiscard]] bool failed() const noexcept { return failed_.load() || flagged(); }

  // Call it before each operation. Throws if the group has ended.
  void require_alive(std::string_view what) {
    if (flagged()) stop_here(what);
    if (failed() || comm() == nullptr) fail<CommunicationError>(what, "a communicator", "one that has been aborted");
  }
  // Waits until NCCL has executed a call that it may execute later. Then the operation is in the stream.
  void settle(ncclResult_t r, std::string_view call, const std::string& what) {
    PauseTolerantTimer patience(deadline_);
    for (int turn = 0; r == ncclInProgress; ++turn) {
      if (failed()) stop_here(what);
      if (patience.is_over()) give_up(what, deadline_);
      if (turn > 100) std::this_thread::sleep_for(std::chrono::microseconds(50));
      check(ncclCommGetAsyncError(comm(), &r), "ncclCommGetAsyncError", what);
    }
    if (r != ncclSuccess) {
      failed_.store(true);
      check(r, call, what);
    }
  }
  // Waits until done() returns true. If NCCL reports an error or the deadline passes, the communicator ends. Operations
  // that were in progress then end soon without a valid sum, so no operation counts as done afterwards.
  template <class Done>
  void wait(Done&& done, std::chrono::milliseconds at_most, const std::string& what) {
    using namespace std::chrono;
    const auto start = steady_clock::now();
    PauseTolerantTimer patience(at_most);
    nanoseconds pause{5'000}, looked{0};
    for (int turn = 0; !done(); ++turn) {
      if (failed()) stop_here(what);
      if (turn < 200) continue;
      const nanoseconds waited = steady_clock::now() - start;
      if (waited - looked > milliseconds(2)) {
        looked = waited;
        ncclResult_t r = ncclSuccess;
        check(ncclCommGetAsyncError(comm(), &r), "ncclCommGetAsyncError", what);
        if (r != ncclSuccess && r != ncclInProgress) {
          const std::string why = text(r);
          abort();
          fail<CommunicationError>(what, "all ranks", why, "a rank may have ended: check the other ranks");
        }
      }
      if (patience.is_over()) give_up(what, at_most);
      std::this_thread::sleep_for(pause);
      pause = std::min<nanoseconds>(pause * 3 / 2, microseconds(200));
    }
    if (comm() == nullptr) stop_here(what);
  }
  // Makes current and later waits on the host throw. The waiting thread aborts the communicator, so that the device
  // continues. Any thread may call it.
  void interrupt() noexcept { failed_.store(true); }
  // Ends all waits on this rank and, if NCCL can notify them, on the other ranks. Do not call it while another thread
  // calls this group, nor while a step is captured. Never throws.
  void abort() noexcept {
    failed_.store(true);
    // Only the first call aborts, because the abort destroys the communicator.
    auto* c = comm_.exchange(nullptr);
    if (c == nullptr) return;
    device_.share_steps(1);
    // NCCL stops its kernels, and then waits until no graph contains its operations. A graph must not be destroyed
    // while it runs one of them. So the abort and the destruction of graphs run at the same time.
    try {
      std::thread end([c] { ncclCommAbort(c); });
      device_.forget_captured();
      end.join();
    } catch (const std::system_error&) {
      device_.forget_captured();
      ncclCommAbort(c);
    }
  }

  void check(ncclResult_t r, std::string_view call, std::string_view what) const {
    if (r != ncclSuccess && r != ncclInProgress)
      fail<CommunicationError>(what, {call, " to succeed"}, text(r), "set NCCL_DEBUG=INFO for details");
  }

 private:
  [[nodiscard]] bool flagged() const noexcept { return flag_ != nullptr && flag_->raised(); }
  // Throws because the group has ended. If a graph is being captured, its operations would block the abort, so the next
  // call or the destructor aborts.
  [[noreturn]] void stop_here(std::string_view what) {
    if (!device_.capturing()) abort();
    fail<CommunicationError>(what, "all ranks", flagged() ? flag_->why() : "this rank has aborted");
  }
  [[nodiscard]] std::string text(ncclResult_t r) const {
    std::string t = ncclGetErrorString(r);
    if (const char* more = ncclGetLastError(comm()); more != nullptr && *more != '\0') t.append(": ").append(more);
    return t;
  }
  [[noreturn]] void give_up(const std::string& what, std::chrono::milliseconds after) {
    if (!device_.capturing()) abort();
    failed_.store(true);
    fail<CommunicationError>(what, "all ranks within the deadline", {"no end after ", after.count(), " ms"},
                             "check the other ranks, or raise --comm-deadline");
  }

  const cuda::Device& device_;
  std::chrono::milliseconds deadline_;
  std::atomic<ncclComm_t> comm_{nullptr};
  cudaStream_t stream_ = nullptr;
  std::atomic<bool> failed_{false};
  const InterruptFlag* flag_;
};

}  // namespace tutti
