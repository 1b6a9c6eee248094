// SPDX-License-Identifier: MIT
#pragma once

#include <nccl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/comm/host_group.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>

#include "backends/cuda_emulator.hpp"

// NCCL played on the processor, beside the emulated GPU: a program that includes this defines those of its functions
// that the communicator calls. Ranks are processes, forked by run_ranks(), because each has a device of its own; they
// sum through memory that they share. Operations are work of the emulated stream, and calls answer that they are still
// in progress, as NCCL does without blocking. What only NCCL can show (its kernels, its links, what it does with a rank
// that is gone) is not tested here.
namespace tutti::emulator {

// What the ranks share. Made before they are forked.
class NcclWorld {
 public:
  struct Shared {
    HostControl control;
    std::atomic<int> joined{0};
    std::atomic<std::uint64_t> identity{0};
    std::array<std::atomic<std::uint64_t>, 64> reached{};  // operations that a rank's stream has come to
  };

  explicit NcclWorld(int size) : size_(size), bytes_(sizeof(Shared) + count() * HostGroup::scratch_bytes) {
    void* const p = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) give_up("no shared memory");
    shared_ = new (p) Shared;
  }
  ~NcclWorld() { ::munmap(shared_, bytes_); }
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] Shared& shared() noexcept { return *shared_; }
  [[nodiscard]] std::vector<std::byte*> scratch() const {
    std::vector<std::byte*> list;
    for (std::size_t r = 0; r < count(); ++r)
      list.push_back(reinterpret_cast<std::byte*>(shared_) + sizeof(Shared) + r * HostGroup::scratch_bytes);
    return list;
  }

 private:
  [[nodiscard]] std::size_t count() const noexcept { return static_cast<std::size_t>(size_); }
  int size_;
  std::size_t bytes_;
  Shared* shared_;
};

// What a test asks for, and what happened.
struct Nccl {
  std::unique_ptr<NcclWorld> world;
  ncclResult_t asynchronous_error = ncclSuccess;
  int started = 0, finalized = 0, destroyed = 0, aborted = 0;
};
inline Nccl nccl;

// Runs f(rank) in a process each. What went wrong in each of them; empty where nothing did.
inline std::vector<std::string> run_ranks(int size, const std::function<void(int)>& f) {
  nccl.world = std::make_unique<NcclWorld>(size);
  std::vector<pid_t> children;
  std::vector<int> ends;
  std::fflush(nullptr);
  for (int r = 0; r < size; ++r) {
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) give_up("no pipe");
    const pid_t child = ::fork();
    if (child < 0) give_up("no process");
    if (child == 0) {
      std::string text;
      try {
        f(r);
      } catch (const std::exception& e) {
        text = e.what();
        if (text.empty()) text = "an exception without a text";
      }
      std::fflush(nullptr);
      if (::write(pipe[1], text.data(), text.size()) < 0) ::_exit(2);
      ::_exit(text.empty() ? 0 : 1);
    }
    ::close(pipe[1]);
    children.push_back(child);
    ends.push_back(pipe[0]);
  }
  std::vector<std::string> said(static_cast<std::size_t>(size));
  for (std::size_t r = 0; r < said.size(); ++r) {
    std::array<char, 4096> bytes{};
    for (ssize_t n = 0; (n = ::read(ends[r], bytes.data(), bytes.size())) > 0;)
      said[r].append(bytes.data(), static_cast<std::size_t>(n));
    ::close(ends[r]);
    int status = 0;
    ::waitpid(children[r], &status, 0);
    if (said[r].empty() && status != 0) said[r] = "status " + std::to_string(status);
  }
  nccl.world.reset();
  return said;
}

}  // namespace tutti::emulator

// The type that NCCL's header leaves open.
struct ncclComm {
  int rank, size;
  tutti::HostGroup group;
  int later = 1;  // answers "in progress" before a call counts as done
  bool over = false;
  std::uint64_t done = 0;                                 // operations
  std::shared_ptr<int> graphs = std::make_shared<int>();  // those that hold its operations hold this too
};

namespace tutti::emulator {

inline DType dtype_of_nccl(ncclDataType_t t) {
  switch (t) {
    case ncclFloat32:
      return DType::f32;
    case ncclFloat64:
      return DType::f64;
    case ncclBfloat16:
      return DType::bf16;
    case ncclFloat16:
      return DType::f16;
    case ncclInt32:
      return DType::i32;
    case ncclInt64:
      return DType::i64;
    case ncclUint8:
      return DType::u8;
    default:
      give_up("a type that the communicator does not use");
  }
}

// f(deadline) as work of the stream. It waits for the other ranks as a kernel does: without an end, and without holding
// up who only asks.
template <class F>
ncclResult_t start(ncclComm_t c, cudaStream_t stream, F&& f) {
  ++nccl.started;
  c->later = 2;
  Device& d = Device::instance();
  const auto held = d.capturing(d.stream_of(stream)) ? c->graphs : nullptr;
  const auto ready = [c] {
    if (c->over || !nccl.world) return true;
    auto& reached = nccl.world->shared().reached;
    const std::uint64_t mine = c->done + 1;
    reached[static_cast<std::size_t>(c->rank)].store(mine);
    return std::all_of(reached.begin(), reached.begin() + c->size, [&](const auto& r) { return r.load() >= mine; });
  };
  const auto work = [c, f, held] {
    if (c->over) return;
    ++c->done;
    try {
      f(std::chrono::steady_clock::now() + std::chrono::seconds(60));
    } catch (const Error& e) {
      std::fprintf(stderr, "emulator: rank %d: %s\n", c->rank, e.what());
      nccl.asynchronous_error = ncclRemoteError;
    }
  };
  d.submit(stream, work, nullptr, ready);
  return ncclInProgress;
}
inline std::span<std::byte> bytes_at(void* p, std::size_t n) { return {static_cast<std::byte*>(p), n}; }
// NCCL waits for ever for graphs that nobody destroys.
inline void require_no_graph(ncclComm_t c) {
  if (c->graphs.use_count() > 1) give_up("a communicator that goes before the graphs that hold its operations");
}
// A communicator that is gone may still stand in work that nobody waited for.
inline void end(ncclComm_t c) {
  static std::vector<std::unique_ptr<ncclComm>> ended;
  c->over = true;
  ended.emplace_back(c);
}

}  // namespace tutti::emulator

extern "C" {
ncclResult_t ncclGetVersion(int* v) { return *v = NCCL_VERSION_CODE, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t r) {
  return r == ncclRemoteError ? "remote process exited" : r == ncclSuccess ? "no error" : "an error of NCCL";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const auto now = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) | 1U;
  *id = {};
  std::memcpy(id->internal, &now, sizeof now);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  using namespace tutti::emulator;
  if (config == nullptr || config->blocking != 0) give_up("a communicator that would block");
  if (!nccl.world) nccl.world = std::make_unique<NcclWorld>(size);
  NcclWorld& world = *nccl.world;
  std::uint64_t mine = 0, known = 0;
  std::memcpy(&mine, id.internal, sizeof mine);
  if (world.size() != size || mine == 0) return ncclInvalidArgument;
  if (!world.shared().identity.compare_exchange_strong(known, mine) && known != mine) return ncclInvalidArgument;
  *comm = new ncclComm{rank, size, tutti::HostGroup(world.shared().control, world.scratch(), rank, false)};
  world.shared().joined.fetch_add(1);
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* e) {
  using namespace tutti::emulator;
  const bool all = nccl.world && nccl.world->shared().joined.load() >= c->size;
  *e = nccl.asynchronous_error != ncclSuccess ? nccl.asynchronous_error
       : !all || c->later-- > 0               ? ncclInProgress
                                              : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t c) {
  ++tutti::emulator::nccl.finalized;
  tutti::emulator::Device::instance().finish_all();
  tutti::emulator::require_no_graph(c);
  c->later = 1;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) {
  ++tutti::emulator::nccl.destroyed;
  // One rank alone may make another communicator.
  if (c->size == 1) tutti::emulator::nccl.world.reset();
  return tutti::emulator::end(c), ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t c) {
  ++tutti::emulator::nccl.aborted;
  c->group.abort();
  if (c->size == 1) tutti::emulator::nccl.world.reset();
  return tutti::emulator::end(c), ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t stream) {
  using namespace tutti;
  const DType t = emulator::dtype_of_nccl(type);
  const bool is_float = t != DType::i32 && t != DType::i64 && t != DType::u8;
  // NCCL's own may lose a NaN.
  if (op == ncclMax && is_float) return ncclInvalidArgument;
  return emulator::start(c, stream, [=](Deadline d) {
    if (to != from) std::memmove(to, from, count * size_of(t));
    c->group.all_reduce(t, emulator::bytes_at(to, count * size_of(t)), op == ncclSum ? ReduceOp::sum : ReduceOp::max, d,
                        "all_reduce");
  });
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t c,
                           cudaStream_t stream) {
  using namespace tutti;
  const std::size_t n = count * size_of(emulator::dtype_of_nccl(type));
  return emulator::start(c, stream, [=](Deadline d) {
    if (to != from && c->rank == root) std::memmove(to, from, n);
    c->group.broadcast(emulator::bytes_at(to, n), root, d, "broadcast");
  });
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t stream) {
  using namespace tutti;
  const std::size_t n = count * size_of(emulator::dtype_of_nccl(type));
  return emulator::start(c, stream, [=](Deadline d) {
    // Those who gather in place have theirs there already.
    const std::vector<std::byte> mine(static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + n);
    c->group.all_gather(mine, emulator::bytes_at(to, n * static_cast<std::size_t>(c->size)), d, "all_gather");
  });
}
}
