// SPDX-License-Identifier: MIT
#pragma once

#include <nccl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/dtype.hpp>

#include "backends/cuda_emulator.hpp"
#include "core/end_process.hpp"

// Emulates NCCL on the processor, for the emulated GPU. This header defines the NCCL functions that the communicator
// calls: include it in one file of a program.
// Each rank is a process with its own emulated GPU, forked by run_ranks() or by a test. Ranks sum through shared
// memory. An operation is an item of the emulated stream. Like a kernel, it waits for the other ranks without an end,
// and calls that only query do not block. Calls return "in progress" at first, like NCCL's without blocking. An aborted
// operation leaves neither the old data nor a sum. Not emulated: NCCL's kernels, its links, and its reaction to a lost
// rank.
namespace tutti::emulator {

// Memory that all ranks share. Create it before you fork the ranks. Memory that no rank touches takes no space.
class NcclWorld {
 public:
  static constexpr std::size_t most_ranks = 8, most_bytes = std::size_t{16} << 20;
  // The state of a communicator. A process that creates an identity takes the next number.
  struct Communicator {
    std::atomic<std::uint64_t> identity{0};
    std::atomic<int> joined{0};
    std::array<std::atomic<std::uint64_t>, most_ranks> reached{};  // operations that each rank's stream reached
  };
  static constexpr std::size_t communicators = 8;  // largest number of communicators that work at the same time

  NcclWorld() {
    void* const p = ::mmap(nullptr, sizeof(Shared) + communicators * most_ranks * 2 * most_bytes,
                           PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) give_up("no shared memory");
    shared_ = new (p) Shared;
  }
  ~NcclWorld() { ::munmap(shared_, sizeof(Shared) + communicators * most_ranks * 2 * most_bytes); }
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  [[nodiscard]] std::uint64_t next_identity() {
    const std::uint64_t identity = ++shared_->identities;
    Communicator& c = shared_->of[identity % communicators];
    c.joined.store(0);
    for (auto& r : c.reached) r.store(0);
    c.identity.store(identity);
    return identity;
  }
  [[nodiscard]] Communicator& of(std::uint64_t identity) { return shared_->of[identity % communicators]; }
  // Returns the memory for a rank's input of an operation. Consecutive operations use different memory: a rank that has
  // reached operation n has read all inputs of operation n - 2.
  [[nodiscard]] std::byte* given(std::uint64_t identity, int rank, std::uint64_t operation) {
    return reinterpret_cast<std::byte*>(shared_ + 1) +
           ((identity % communicators * most_ranks + static_cast<std::size_t>(rank)) * 2 + operation % 2) * most_bytes;
  }

 private:
  struct alignas(64) Shared {
    std::atomic<std::uint64_t> identities{0};
    std::array<Communicator, communicators> of;
  };
  Shared* shared_;
};

// The settings of a test, and counts of calls.
struct Nccl {
  std::unique_ptr<NcclWorld> world;
  ncclResult_t asynchronous_error = ncclSuccess;
  int started = 0, finalized = 0, destroyed = 0, aborted = 0;
  int living = 0;                              // number of communicators of this process
  int registered = 0;                          // number of registered pieces of memory
  ncclResult_t registration = ncclInProgress;  // the result of ncclCommRegister
  bool captures_alone = false;  // an operation outside a capture must not start while some are outstanding
  // Called at each point at which a rank may be lost: before a call, while ranks join, and before an operation runs.
  std::function<void(const char* point)> at = [](const char*) {};

  [[nodiscard]] NcclWorld& shared() {
    if (!world) world = std::make_unique<NcclWorld>();
    return *world;
  }
};
inline Nccl nccl;

// Runs f(rank) in one process for each rank. Returns the error of each rank, or an empty text for a rank without an
// error.
inline std::vector<std::string> run_ranks(int size, const std::function<void(int)>& f,
                                          const std::function<pid_t()>& fork = ::fork) {
  nccl.world = std::make_unique<NcclWorld>();
  std::vector<pid_t> children;
  std::vector<int> ends;
  std::fflush(nullptr);
  static_cast<void>(folder());  // this process creates the folder and removes it: the children end without cleaning up
  for (int r = 0; r < size; ++r) {
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) give_up("no pipe");
    const pid_t child = fork();
    if (child < 0) give_up("no process");
    if (child == 0) {
      std::string text;
      try {
        f(r);
      } catch (const std::exception& e) {
        text = e.what();
        if (text.empty()) text = "an exception without a text";
      }
      if (::write(pipe[1], text.data(), text.size()) < 0) ::_exit(2);
      testing::end_process(text.empty() ? 0 : 1);
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

// NCCL's header declares this type and does not define it.
struct ncclComm {
  int rank, size;
  std::uint64_t identity;
  int later = 1;  // number of "in progress" answers before a call counts as done
  std::atomic<bool> over{false};
  bool ends = false;                                      // the host finishes its operations
  std::uint64_t given = 0, done = 0;                      // operations with input, and finished ones
  std::shared_ptr<int> graphs = std::make_shared<int>();  // each graph with operations of c holds a reference
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

// Adds an operation to the stream. It provides `bytes` bytes from `from`, and calls f with the inputs of all ranks when
// all ranks have provided theirs.
template <class F>
ncclResult_t start(ncclComm_t c, cudaStream_t stream, const void* from, std::size_t bytes, void* to,
                   std::size_t to_bytes, F&& f) {
  nccl.at("a call");
  if (bytes > NcclWorld::most_bytes) give_up("an operation of more bytes than ranks share");
  ++nccl.started;
  c->later = 2;
  Device& d = Device::instance();
  const auto held = d.capturing(d.stream_of(stream)) ? c->graphs : nullptr;
  const auto& waiting = d.stream_of(nullptr)->items;
  if (nccl.captures_alone && held == nullptr &&
      std::any_of(waiting.begin(), waiting.end(), [](const Item& i) { return i.of_graph; }))
    give_up("an operation beside a captured one");
  const auto ready = [c, from, bytes] {
    if (c->over) return true;
    NcclWorld& world = nccl.shared();
    auto& reached = world.of(c->identity).reached;
    const std::uint64_t mine = c->done + 1;
    if (c->given < mine) {
      nccl.at("an operation");
      c->given = mine;
      if (bytes > 0) std::memcpy(world.given(c->identity, c->rank, mine), from, bytes);
      reached[static_cast<std::size_t>(c->rank)].store(mine);
    }
    return std::all_of(reached.begin(), reached.begin() + c->size, [&](const auto& r) { return r.load() >= mine; });
  };
  const auto work = [c, f, held, to, to_bytes] {
    if (c->over) {
      std::memset(to, 0x4b, to_bytes);
      return;
    }
    ++c->done;
    std::vector<std::byte*> all;
    for (int r = 0; r < c->size; ++r) all.push_back(nccl.shared().given(c->identity, r, c->done));
    f(all);
  };
  d.submit(stream, work, nullptr, ready);
  return ncclInProgress;
}
// Ends the program if a graph with operations of c exists: NCCL would wait for its destruction for ever.
inline void require_no_graph(ncclComm_t c) {
  if (c->graphs.use_count() > 1) give_up("a communicator that goes before the graphs that hold its operations");
}
// Lets each stream make some progress. Returns true if one has more work.
inline bool still_works() {
  Device& d = Device::instance();
  bool works = false;
  std::vector<Stream*> streams = d.sides;
  streams.push_back(d.stream_of(nullptr));
  for (Stream* s : streams) works = d.advance(*s) || !s->items.empty() || works;
  return works;
}
// Keeps an ended communicator: work for which no thread waited may still refer to it.
inline void end(ncclComm_t c) {
  static std::vector<std::unique_ptr<ncclComm>> ended;
  --nccl.living;
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
  using namespace tutti::emulator;
  nccl.at("an identity");
  const std::uint64_t identity = nccl.shared().next_identity();
  *id = {};
  std::memcpy(id->internal, &identity, sizeof identity);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  using namespace tutti::emulator;
  if (config == nullptr || config->blocking != 0) give_up("a communicator that would block");
  nccl.at("a rank that joins");
  std::uint64_t identity = 0;
  std::memcpy(&identity, id.internal, sizeof identity);
  NcclWorld::Communicator& c = nccl.shared().of(identity);
  if (identity == 0 || c.identity.load() != identity || size > static_cast<int>(NcclWorld::most_ranks))
    return ncclInvalidArgument;
  *comm = new ncclComm{rank, size, identity};
  ++nccl.living;
  c.joined.fetch_add(1);
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* e) {
  using namespace tutti::emulator;
  const bool all = nccl.shared().of(c->identity).joined.load() >= c->size;
  if (!all) nccl.at("ranks that join");
  const bool works = c->ends && still_works();
  *e = nccl.asynchronous_error != ncclSuccess ? nccl.asynchronous_error
       : !all || works || c->later-- > 0      ? ncclInProgress
                                              : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t c) {
  using namespace tutti::emulator;
  nccl.at("an end");
  ++nccl.finalized;
  if (nccl.registered > 0) give_up("a communicator that ends with registered memory");
  require_no_graph(c);
  c->ends = true;
  c->later = 1;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) {
  ++tutti::emulator::nccl.destroyed;
  return tutti::emulator::end(c), ncclSuccess;
}
ncclResult_t ncclMemAlloc(void** p, size_t n) {
  return cudaMalloc(p, n) == cudaSuccess ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclMemFree(void* p) { return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclSystemError; }
ncclResult_t ncclCommRegister(const ncclComm_t c, void* p, size_t, void** handle) {
  using namespace tutti::emulator;
  if (nccl.registration != ncclSuccess && nccl.registration != ncclInProgress) return nccl.registration;
  ++nccl.registered;
  *handle = p;
  c->later = 2;
  return nccl.registration;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return --tutti::emulator::nccl.registered, ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t c) {
  using namespace tutti::emulator;
  // NCCL would wait for a graph that is still being captured.
  if (Device::instance().capture) give_up("a communicator that is aborted while a graph is captured");
  ++nccl.aborted;
  nccl.registered = 0;
  return end(c), ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t stream) {
  using namespace tutti;
  const DType t = emulator::dtype_of_nccl(type);
  const bool is_float = t != DType::i32 && t != DType::i64 && t != DType::u8;
  // NCCL's own maximum may lose a NaN.
  if (op == ncclMax && is_float) return ncclInvalidArgument;
  const std::size_t n = count * size_of(t);
  return emulator::start(c, stream, from, n, to, n, [=](const std::vector<std::byte*>& all) {
    const std::array<std::byte*, 1> here{static_cast<std::byte*>(to)};
    combine(t, op == ncclSum ? ReduceOp::sum : ReduceOp::max, all, here, 0, count);
  });
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t c,
                           cudaStream_t stream) {
  using namespace tutti;
  const std::size_t n = count * size_of(emulator::dtype_of_nccl(type));
  return emulator::start(c, stream, from, c->rank == root ? n : 0, to, n, [=](const std::vector<std::byte*>& all) {
    std::memcpy(to, all[static_cast<std::size_t>(root)], n);
  });
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t stream) {
  using namespace tutti;
  const std::size_t n = count * size_of(emulator::dtype_of_nccl(type));
  return emulator::start(c, stream, from, n, to, n * static_cast<std::size_t>(c->size),
                         [=](const std::vector<std::byte*>& all) {
                           for (std::size_t r = 0; r < all.size(); ++r)
                             std::memcpy(static_cast<std::byte*>(to) + r * n, all[r], n);
                         });
}
}
